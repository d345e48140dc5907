"""What is recorded of conversations: rows that hold, turn by turn, what the engine saw, and every token once.

Some seats have several conversations, whose turns come in any order.
"""

import random
from itertools import pairwise

from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.reply_grammars import LIBRARY, ReplyGrammar, digest_of
from flexmarl.contracts.wire import EpisodeStatus, Origin, PolicyPin
from flexmarl.language.answers import comparable
from flexmarl.language.messages import Message
from flexmarl.store.data.groups import SampleRow, SettledGroup
from tests.support.chat_templates import CHATML, END, FORGETTING, TRIMMING, renderer, tokenizer
from workers.rollout.engines.wire import CompletionChoice
from workers.rollout.environments.base import Ask, Outcome
from workers.rollout.episode import EpisodeAttempt, EpisodeOrder
from workers.rollout.isolation.lines import outcome_of, score_of
from workers.rollout.recorder import EventDetails, settled_group
from workers.rollout.speech import Seat, Speech
from workers.rollout.turns import Turn, TurnReply
from workers.vocabulary import Codec

WORDS = tokenizer()
STOP = WORDS.token_to_id(END)
PIN = PolicyPin(version=3, digest="")
SAYINGS = ("7", "well, ü 8", "<think>so</think> 9", " 10 ", "", "🙂")
FORMATS = ('{"type":"choice","choices":["7"]}', '{"type":"regex","pattern":"[0-9]"}')
Seen = dict[tuple[str, int], tuple[tuple[int, ...], list[int]]]
"""Role and turn -> prompt and reply, as the engine saw them."""


class Talk:
    """An episode of two seats in messages, and one asked in words, with replies out of a hat."""

    def __init__(self, seed: int, template: str) -> None:
        self.chances = random.Random(seed)
        codec, own = Codec(WORDS.to_str().encode()), renderer(template)
        self.seats = {
            role: Seat(role, PIN, codec, 20, 1.0, renderer=own, trained=role == "ann")
            for role in ("ann", "bob", "word")
        }
        self.attempt = EpisodeAttempt(EpisodeOrder(5, 1, 2, 0, False, 0, 9.0, 9.0, None))
        self.speech = Speech(self.seats, breaks=self.attempt.breaks)
        self.seen: Seen = {}
        self.marks: dict[tuple[str, int], list[object]] = {}

    def play(self, answer: str = "", told: EventDetails | None = None) -> SettledGroup:
        for _ in range(self.chances.randrange(2, 9)):
            self.turn(self.chances.choice(("ann", "bob", "word")))
        rewards = {key: float(number) for number, key in enumerate(self.seen)}
        self.attempt.outcome = Outcome({}, 1.0, True, rewards, answer=answer)
        self.attempt.status = EpisodeStatus.FINISHED
        order = PlayGroups(pool="p", epoch=1, origin=Origin.TRAIN, groups=(), pins={"ann": PIN}, sampling_seed=0)
        return settled_group(order, 1, [self.attempt], self.seats, told or EventDetails())

    def turn(self, role: str) -> None:
        allowed = self.chances.choice(((), (), (), ("7", "8"))) if role == "bob" else ()
        talk = (role, self.chances.randrange(3) if role == "ann" else 0)
        if role == "word":
            ask = Ask(role, "x", 20)
        else:
            first = () if talk in self.speech.chains else (Message("system", f"You are {role} in {talk[1]}."),)
            new = (*first, Message("user", str(self.chances.random())))
            structured = self.chances.choice(("", "", *FORMATS)) if not allowed else ""
            ask = Ask(role, "", 20, allowed, messages=new, conversation=talk[1], structured=structured)
        prompt = self.speech.prompt(ask)
        no = self.speech.turn_of(ask)
        said = WORDS.encode(self.chances.choice(SAYINGS), add_special_tokens=False).ids
        said += [STOP] if not said or self.chances.random() < 0.8 else []
        first = self.chances.randrange(len(said) + 1)
        segments = [n for pair in ((3, first), (4, len(said) - first)) if pair[1] for n in pair]
        logprobs = [-self.chances.random() for _ in said]
        finish = "stop" if said[-1] == STOP else "length"
        reply = TurnReply(CompletionChoice(0, said, logprobs, finish, segments), f"e{no}", 1.5)
        mark = no if role == "word" else (self.speech.chains[talk].number, ask.allowed)
        self.marks.setdefault(talk, []).append(mark)
        mask = tuple(WORDS.token_to_id(word) for word in ask.allowed)
        began, held = self.speech.begins(ask), {"structured": ask.structured, "stop": (STOP,)}
        self.attempt.turns.append(Turn(role, no, prompt, mask, 1.0, reply, began, **held))
        self.seen[role, no] = prompt, said
        self.speech.hear(ask, reply.choice)

    def expected_rows(self) -> int:
        """Count the stretches of turns in which neither a chain broke nor other words were allowed."""
        return sum(1 + sum(a != b for a, b in pairwise(own)) for own in self.marks.values())


def replayed(row: SampleRow) -> Seen:
    """Return what the engine saw, from a row alone."""
    read, said, sequence, found = list(row.prompt), list(row.response), [], {}
    for span in row.spans:
        sequence, read = sequence + read[: span.context], read[span.context :]
        found[row.role, row.turn + span.offset] = tuple(sequence), said[: span.sampled]
        sequence, said = sequence + said[: span.sampled], said[span.sampled :]
    assert (read, said) == ([], [])
    return found


def test_an_answer_is_told_where_votes_are_counted_as_a_digest_and_crosses_processes() -> None:
    for said, alike in (("7.0", "7"), (" so  it\nis ", "so it is"), ("", ""), ("a\x00b" * 9000, "a\x00b" * 9000)):
        talk = Talk(1, CHATML)
        (outcome,) = talk.play(said, EventDetails(answers=True)).event.episodes
        assert outcome.answer == comparable(alike)
        assert not outcome.answer or outcome.answer.isalnum(), "PostgreSQL has no zero bytes in its JSON"
        assert len(outcome.answer) <= 16
        assert Talk(1, CHATML).play(said).event.episodes[0].answer == ""
        assert talk.attempt.outcome is not None
        assert outcome_of(score_of(talk.attempt.outcome)) == talk.attempt.outcome


def test_each_turn_of_a_trained_seat_names_what_held_it_and_the_texts_come_once() -> None:
    named = joined = 0
    for seed in range(200):
        talk = Talk(seed, CHATML)
        settled = talk.play()
        texts = {digest_of(body): ReplyGrammar.model_validate_json(body) for body in settled.grammars}
        assert len(texts) == len(settled.grammars)
        turns = {(turn.role, turn.turn): turn for turn in talk.attempt.turns}
        used = set()
        for row in settled.samples:
            for span in row.spans:
                turn = turns[row.role, row.turn + span.offset]
                if row.role != "ann":
                    assert span.grammar == "", "nobody trains on it"
                    continue
                assert (texts[span.grammar].structured if span.grammar else "") == turn.structured
                used |= {span.grammar} - {""}
            joined += len({span.grammar for span in row.spans}) > 1
        assert used == texts.keys()
        own = talk.seats["ann"].codec.digest
        assert all((one.stop, one.tokenizer, one.library) == ((STOP,), own, LIBRARY) for one in texts.values())
        named += len(used)
    assert named > 100
    assert joined > 20, "a chain goes on under another format"


def test_rows_hold_what_the_engine_saw_and_each_token_once() -> None:
    broken = joined = 0
    for seed in range(500):
        talk = Talk(seed, (CHATML, TRIMMING, FORGETTING)[seed % 3])
        settled = talk.play()
        told: Seen = {}
        for row in settled.samples:
            turns = replayed(row)
            assert not turns.keys() & told.keys()
            told |= turns
            by_turn = [turn for turn in talk.attempt.turns if (turn.role, turn.turn) in turns]
            assert len({turn.allowed for turn in by_turn}) == 1
            assert list(row.logprobs) == [p for turn in by_turn for p in turn.reply.choice.logprobs]
            made = [v for v, n in zip(row.segments[::2], row.segments[1::2], strict=True) for _ in range(n)]
            assert made == [
                version
                for turn in by_turn
                for version, count in zip(*[iter(turn.reply.choice.segments)] * 2, strict=True)
                for _ in range(count)
            ]
            assert row.version == min(made)
            assert [span.reward for span in row.spans] == [talk.attempt.outcome.turn_rewards[key] for key in turns]
            assert [span.engine for span in row.spans] == [f"e{turn.turn}" for turn in by_turn]
        assert told == talk.seen
        broken += sum(chain.number for chain in talk.speech.chains.values())
        joined += sum(len(row.spans) > 1 for row in settled.samples)
        (episode,) = settled.event.episodes
        begun = {(one.role, one.turn) for one in episode.samples if not one.follows}
        assert begun == {(row.role, row.turn) for row in settled.samples}
        assert [(one.role, one.turn, one.tokens) for one in episode.samples] == [
            (role, turn, len(said)) for (role, turn), (_, said) in talk.seen.items()
        ]
        owner = {key: row.turn for row in settled.samples for key in replayed(row)}
        assert all(one.turn - one.follows == owner[one.role, one.turn] for one in episode.samples)
        assert settled.episodes[0].tokens == sum(len(row.response) for row in settled.samples)
        assert len(settled.samples) == talk.expected_rows()
        (kept,) = settled.episodes
        assert list(kept.said) == [WORDS.decode(turn.reply.choice.token_ids) for turn in talk.attempt.turns]
        assert {cause: len(at) for cause, at in kept.breaks.items()} == episode.breaks
        anew = {(role, turn) for role, turn in begun if turn and role != "word"}
        assert {key for at in kept.breaks.values() for key in at} <= anew, "where a chain broke, a row begins"
        assert sum(episode.breaks.values()) == sum(chain.number for chain in talk.speech.chains.values())
    assert broken > 20
    assert joined > 100
