"""What `@register` makes of a method, and how a call of it is planned."""
