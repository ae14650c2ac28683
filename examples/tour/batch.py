"""A batch on its own: columns that are grouped, balanced, cut and joined together. No workers, no Ray."""

import torch
from verl_protocol import DataProto, balanced_partition

batch = DataProto.from_dict(
    tensors={"length": torch.tensor([9, 2, 3, 1, 4, 5]), "reward": torch.tensor([1.0, 0, 0, 1, 1, 1])},
    non_tensors={"prompt": ["a", "a", "b", "b", "c", "c"]},
    meta_info={"step": 7},
)
print(batch)

print("\n  prompt  mean reward")
for prompt, rows in batch.group_by("prompt").items():
    mean = float(rows.tensor("reward").mean())
    print(f"  {prompt:>6}  {mean:.1f} {'#' * int(10 * mean)}")

balanced = batch[balanced_partition(batch.tensor("length"), 3).order]
print("\n  third  tokens as the rows come  tokens balanced")
for third, parts in enumerate(zip(batch.chunk(3), balanced.chunk(3), strict=True)):
    one, other = (int(part.tensor("length").sum()) for part in parts)
    print(f"  {third:>5}  {one:>2} {'#' * one:<21}  {other:>2} {'#' * other}")

print("\njoined again:", DataProto.concat(balanced.chunk(3)).equals(balanced))
