"""`verl-grpo-tiny`: a small language model with random weights, made without any download.

It is a Llama of two layers and a byte-level BPE tokenizer trained on the questions, written as
`from_pretrained` reads them: what trains it would train a large one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_examples.errors import EXIT_BAD_INPUT
from verl_examples.hf.installed import needs_hugging_face
from verl_examples.question_file import DEFAULT_FILE, QuestionFileError, Record, read_records

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; prints where the model is."""
    what = "Write a small language model with random weights."
    parser = argparse.ArgumentParser(prog="verl-grpo-tiny", description=what)
    parser.add_argument("folder", type=Path, help="where to write the model and its tokenizer")
    parser.add_argument(
        "--data", type=Path, metavar="FILE", default=DEFAULT_FILE, help="text for the tokenizer"
    )
    parser.add_argument("--seed", type=int, metavar="N", default=0, help="default: %(default)s")
    given = parser.parse_args(arguments)
    try:
        needs_hugging_face()
        records = read_records(given.data, messages=True)
    except (ImportError, QuestionFileError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return EXIT_BAD_INPUT
    num_parameters = write_tiny_model(given.folder, records, given.seed)
    sys.stdout.write(f"{given.folder}: a Llama with {num_parameters:,} random parameters\n")
    return 0


def write_tiny_model(folder: Path, records: Iterable[Record], seed: int = 0) -> int:
    """Write model and tokenizer to a folder; return the number of parameters."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from verl_examples.hf.models import without_progress_bars

    tokenizer = train_tokenizer(_texts(records))
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    without_progress_bars()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return int(model.num_parameters())


def train_tokenizer(texts: Iterable[str], vocabulary_size: int = 300) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any text can be written, what comes often takes fewer tokens.

    Digits stay apart, as in most tokenizers that are to calculate.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=[PAD, END, USER, ASSISTANT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast
    fast: PreTrainedTokenizerFast = make(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def _texts(records: Iterable[Record]) -> Iterable[str]:
    for record in records:
        prompt = record["prompt"]
        yield prompt if isinstance(prompt, str) else "".join(message["content"] for message in prompt)
        yield record["answer"]
