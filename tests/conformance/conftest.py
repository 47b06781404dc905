import torch

from refimpl.conformance.profiles import register_profiles

torch.set_num_threads(1)
register_profiles()
