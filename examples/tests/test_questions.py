"""Question files: the one that ships, and every way in which one can be wrong."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from verl_examples.make_questions import NUM_HELD_OUT, NUM_TRAIN, write
from verl_examples.question_file import DEFAULT_FILE, Question, QuestionFileError, read_questions
from verl_examples.toy.data import endless_batches, prompt_batch
from verl_examples.toy.tokenizer import END, PAD, CharTokenizer, UnknownCharacterError

GOOD = '{"prompt": "sort 21=", "answer": "12"}'


def test_shipped_file_is_what_the_script_writes(tmp_path: Path) -> None:
    write(tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == DEFAULT_FILE.read_bytes()


def test_shipped_questions_are_right_and_parted() -> None:
    questions = read_questions(DEFAULT_FILE)
    assert (len(questions.train), len(questions.held_out)) == (NUM_TRAIN, NUM_HELD_OUT)
    for question in questions:
        digits = question.prompt.removeprefix("sort ").removesuffix("=")
        assert question.answer == "".join(sorted(digits))
    assert not {q.prompt for q in questions.train} & {q.prompt for q in questions.held_out}


def test_without_parts_every_eighth_question_is_held_out(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text("\n\n".join(f'{{"prompt": "{n}", "answer": "x"}}' for n in range(1, 18)))
    questions = read_questions(file)
    assert [question.prompt for question in questions.held_out] == ["8", "16"]
    assert len(questions.train) == 15


def test_lines_without_part_are_for_training_where_others_say(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(GOOD + '\n{"prompt": "p", "answer": "a", "part": "held_out"}\n')
    questions = read_questions(file)
    assert questions.train == (Question("sort 21=", "12"),)
    assert questions.held_out == (Question("p", "a"),)
    assert (questions.prompt_width, questions.answer_width) == (8, 3)


@pytest.mark.parametrize(
    ("second_line", "problem"),
    [
        ("{not json", "is not JSON"),
        ("[1, 2]", "holds a list"),
        ('{"prompt": "p"}', "has no 'answer'"),
        ('{"answer": "a"}', "has no 'prompt'"),
        ('{"prompt": 3, "answer": "a"}', "'prompt' is 3"),
        ('{"prompt": "p", "answer": ""}', "'answer' is ''"),
        ('{"prompt": "p", "answer": "a", "part": "test"}', "'part' is 'test', expected train or held_out"),
        (GOOD, "'sort 21=' was already on line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, second_line: str, problem: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(f"{GOOD}\n{second_line}\n")
    with pytest.raises(QuestionFileError) as caught:
        read_questions(file)
    assert caught.value.line == 2
    assert f"{file}, line 2: " in str(caught.value)
    assert problem in str(caught.value)


def test_a_line_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_bytes(GOOD.encode() + b"\n\n\xff\xfe\n")
    with pytest.raises(QuestionFileError, match="line 3: is not UTF-8"):
        read_questions(file)


@pytest.mark.parametrize("content", ["", "\n\n", GOOD])
def test_a_file_without_enough_questions_says_which_part_is_empty(tmp_path: Path, content: str) -> None:
    file = tmp_path / "few.jsonl"
    file.write_text(content)
    with pytest.raises(QuestionFileError, match=r"has no (train|held_out) question"):
        read_questions(file)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(QuestionFileError, match=r"nowhere\.jsonl: cannot be read \(No such file"):
        read_questions(tmp_path / "nowhere.jsonl")


def test_every_question_comes_once_before_any_comes_again() -> None:
    questions = [Question(str(number), "x") for number in range(10)]
    drawn = [
        question.prompt for batch in islice(endless_batches(questions, 4, seed=0), 5) for question in batch
    ]
    assert len(set(drawn[:10])) == len(set(drawn[10:])) == 10
    again = [
        question.prompt for batch in islice(endless_batches(questions, 4, seed=0), 5) for question in batch
    ]
    assert again == drawn


def test_batches_hold_left_padded_prompts_and_their_answers() -> None:
    questions = [Question("ab", "1"), Question("b", "22")]
    batch = prompt_batch(questions, CharTokenizer.for_texts(["ab12"]), prompt_width=3)
    assert batch.tensor("prompts").tolist() == [[PAD, 4, 5], [PAD, PAD, 5]]
    assert batch.column("answer").tolist() == ["1", "22"]
    assert batch.is_padding_enabled()


def test_answers_end_with_the_end_token() -> None:
    tokenizer = CharTokenizer.for_texts(["12"])
    encoded = tokenizer.encode_answers(["1", "12"], width=4)
    assert encoded.tolist() == [[2, END, PAD, PAD], [2, 3, END, PAD]]
    assert [tokenizer.decode(row) for row in encoded.tolist()] == ["1", "12"]
    assert tokenizer.decode([PAD, 2, 3]) == "12"


def test_an_unknown_character_is_named() -> None:
    with pytest.raises(UnknownCharacterError, match=r"'1!2' holds '!'"):
        CharTokenizer.for_texts(["12"]).encode("1!2")
