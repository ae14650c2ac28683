"""The four workers of a post-training run."""

from verl_examples.workers.actor import ActorWorker
from verl_examples.workers.critic import CriticWorker
from verl_examples.workers.reference import ReferenceWorker
from verl_examples.workers.reward import RewardWorker

__all__ = ["ActorWorker", "CriticWorker", "ReferenceWorker", "RewardWorker"]
