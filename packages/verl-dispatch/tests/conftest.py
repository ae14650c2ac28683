"""Settings for all tests of this package."""

from hypothesis import settings

# A machine shared with others is slow at times; what an example takes says nothing about the code.
settings.register_profile("shared machine", deadline=None, max_examples=50)
settings.load_profile("shared machine")
