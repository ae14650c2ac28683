"""The policy as it was when reinforcement began, so that training cannot wander off unseen."""

from __future__ import annotations

from pathlib import Path

import torch
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.hf.jagged import Sequences, unpadded
from verl_examples.hf.models import answer_log_probs, load_causal_lm
from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.model_worker import SEQUENCES, ModelWorker


class ReferenceWorker(ModelWorker):
    """A frozen copy of a model."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._load(settings.model)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_model(self, folder: Path) -> None:
        """Be the model that lies in a folder."""
        self._load(str(folder))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True, reads=SEQUENCES, writes=("ref_log_prob",))
    @torch.no_grad()
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """Log-probabilities of the answers under the frozen policy: `ref_log_prob`, jagged."""
        return DataProto.concat([self._log_probs_of(sequences) for _, sequences in self.passes(batch)])

    def _log_probs_of(self, sequences: Sequences) -> DataProto:
        log_probs = answer_log_probs(self.network, sequences, self.settings.temperature)
        return DataProto.from_dict({"ref_log_prob": unpadded(log_probs, sequences.mask)})

    def _load(self, model: str) -> None:
        network = load_causal_lm(model, self.dtype, self.settings.trust_remote_code)
        self.network = network.to(self.device).eval()
