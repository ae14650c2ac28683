"""Settings for all tests of this package."""

import torch
from hypothesis import settings

# A machine shared with others is slow at times; what an example takes says nothing about the code.
settings.register_profile("shared machine", deadline=None, max_examples=50)
settings.load_profile("shared machine")

# The tensors of these tests are tiny: handing them to several threads only costs time.
torch.set_num_threads(1)
