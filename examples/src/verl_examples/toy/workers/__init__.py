"""The four workers of a post-training run."""

from verl_examples.toy.workers.actor import ActorWorker
from verl_examples.toy.workers.critic import CriticWorker
from verl_examples.toy.workers.reference import ReferenceWorker
from verl_examples.toy.workers.reward import RewardWorker

__all__ = ["ActorWorker", "CriticWorker", "ReferenceWorker", "RewardWorker"]
