"""From arguments to a call plan and from answers to a result: pure, without a group and without I/O."""
