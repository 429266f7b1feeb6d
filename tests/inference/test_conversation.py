import pytest

import nanoeuler
from nanoeuler.inference.conversation import Conversation
from nanoeuler.inference.sampling import GREEDY, Sampling


@pytest.fixture(scope="module")
def tuned(tuned_folder):
    return nanoeuler.load(tuned_folder)


@pytest.fixture(scope="module")
def base(base_folder):
    return nanoeuler.load(base_folder)


def converse(conversation, text=None, sampling=GREEDY, max_tokens=30):
    """One turn, or without text more of the last, as in the chat: the ids that the model read, and
    the text that it wrote."""
    if text is not None:
        conversation.say(text)
    reply = conversation.reply(sampling, max_tokens)
    read = reply.decoding.decoder.rows[0].prompt
    written = "".join(reply)
    conversation.hear(reply)
    return read, written


def test_a_tuned_model_reads_the_record_it_was_trained_on(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=False)
    read, written = converse(conversation, "Name a colour.")
    assert read == tuned.writer.frame(tuned.prompt("Name a colour."))
    assert written == "blue"
    assert not conversation.unfinished


def test_without_history_every_turn_stands_alone(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=False)
    converse(conversation, "Count.")
    read, written = converse(conversation, "Name a colour.")
    assert read == tuned.writer.frame(tuned.prompt("Name a colour."))
    assert written == "blue"


def test_with_history_records_follow_each_other_framed_as_in_training(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=True)
    first, _ = converse(conversation, "Name a colour.")
    read, _ = converse(conversation, "Count.")
    reply = tuned.tokenizer.encode("blue").tolist()
    second = tuned.writer.frame(tuned.prompt("Count."))
    assert read == first + reply + second  # one </s> ends the first and starts the second


def test_an_unfinished_reply_is_continued(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=False)
    _, start = converse(conversation, "Count.", max_tokens=3)
    assert conversation.unfinished
    _, rest = converse(conversation)
    assert start + rest == "one two three four five six seven"
    assert not conversation.unfinished


def test_a_reply_that_goes_on_draws_what_the_whole_would_have_drawn(base):
    sampling = Sampling(temperature=1.0, seed=3)
    conversation = Conversation(base.writer, None, history=False)
    pieces = [
        converse(conversation, "A", sampling, 5)[1],
        converse(conversation, None, sampling, 7)[1],
    ]
    other = Conversation(base.writer, None, history=False)
    assert converse(other, "A", sampling, 12)[1] == "".join(pieces)


def test_a_base_model_takes_each_text_by_itself_or_as_the_next_part(base):
    apart = Conversation(base.writer, None, history=False)
    converse(apart, "First", max_tokens=3)
    assert converse(apart, "Second", max_tokens=3)[0] == base.writer.frame("Second")
    running = Conversation(base.writer, None, history=True)
    first, _ = converse(running, "First", max_tokens=3)
    reply = list(running.turns[0].reply)
    assert (
        converse(running, " second", max_tokens=3)[0]
        == first + reply + base.tokenizer.encode(" second").tolist()
    )


def test_the_oldest_turns_are_dropped_whole_when_the_context_is_full(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=True)
    for _ in range(2):
        converse(conversation, "Count.")
    conversation.say("Name a colour.")
    assert len(conversation.turns[0].ids) * 2 + len(conversation.turns[2].ids) > 96
    assert conversation.forget(max_tokens=10) == 2
    assert [turn.ids for turn in conversation.turns] == [
        tuned.writer.frame(tuned.prompt("Name a colour."))
    ]


def test_the_last_turn_stays_however_long_it_is(tuned):
    conversation = Conversation(tuned.writer, tuned.prompt, history=True)
    conversation.say("word " * 300)
    assert conversation.forget(max_tokens=1000) == 0
    assert len(conversation.turns) == 1


def test_a_long_reply_takes_at_most_half_the_context_from_the_history(tuned):
    conversation = Conversation(tuned.writer, None, history=True)
    conversation.say("a")
    conversation.say("b")
    assert conversation.forget(max_tokens=100_000) == 0


def test_a_repeated_question_is_not_answered_by_repetition_but_a_repeated_conversation_is(base):
    def replies():
        conversation = Conversation(base.writer, None, history=False)
        return [
            converse(conversation, "Once", Sampling(temperature=1.0, seed=1), 20)[1]
            for _ in range(2)
        ]

    first, second = replies()
    assert first != second
    assert replies() == [first, second]
