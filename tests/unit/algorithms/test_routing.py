"""What every router promises, and what each is for."""

import random

import pytest

from flexmarl.algorithms.routing import ROUTERS, EngineLoad, Reason, ReplyLengths, RouteRequest
from flexmarl.algorithms.routing.base import MARGIN
from flexmarl.algorithms.routing.lengths import TASKS
from flexmarl.algorithms.routing.prefix_affinity import PrefixAffinity
from flexmarl.algorithms.routing.skew_aware import DOUBLING, RequestKind, dedicated
from flexmarl.contracts.hardware import Hardware, class_of, read_classes
from flexmarl.contracts.specification.routers import ROUTER

TURN = RouteRequest(prompt_tokens=100, reply_tokens=50, usual_tokens=50)


def loads(*outstanding: int, **more: object) -> list[EngineLoad]:
    return [EngineLoad(f"e{i}", in_flight=n, **more) for i, n in enumerate(outstanding)]


def any_loads(rng: random.Random) -> list[EngineLoad]:
    return [
        EngineLoad(
            f"e{i}", rng.randrange(9), rng.randrange(9), rng.randrange(9), rng.uniform(0, 4000),
            rng.choice(list(Hardware)), rng.random() < 0.5,
        )
        for i in rng.sample(range(40), rng.randint(1, 12))
    ]  # fmt: skip


def any_turn(rng: random.Random) -> RouteRequest:
    prefixes = (f"{rng.randrange(9)}.{rng.randrange(4)}.a", f"{rng.randrange(9)}.a") if rng.random() < 0.8 else ()
    return RouteRequest(rng.randrange(4000), rng.uniform(1, 900), rng.uniform(0, 200), prefixes)


@pytest.mark.parametrize("name", ROUTERS.names())
def test_every_router_chooses_one_it_is_shown_says_why_and_repeats_itself(name: str) -> None:
    one, twin, rng = ROUTERS.make(ROUTER.options(name)), ROUTERS.make(ROUTER.options(name)), random.Random(5)
    for _ in range(300):
        turn, engines = any_turn(rng), any_loads(rng)
        choice = one.choose(turn, engines)
        assert choice.engine in {load.engine for load in engines}
        assert choice.loads == tuple(engines), "the loads that justify it"
        assert choice.reason in set(Reason)
        assert (choice.reason is Reason.ONLY) == (len(engines) == 1)
        assert choice == twin.choose(turn, engines)


@pytest.mark.parametrize("name", ROUTERS.names())
def test_every_router_refuses_to_choose_among_none(name: str) -> None:
    with pytest.raises(ValueError, match="no engine"):
        ROUTERS.make(ROUTER.options(name)).choose(TURN, [])


@pytest.mark.parametrize("name", [name for name in ROUTERS.names() if name != "skew_aware"])  # it makes them unequal
def test_no_router_leaves_equal_engines_idle(name: str) -> None:
    """Told of what it sent, it spreads turns over engines that differ in nothing."""
    router, sent, rng = ROUTERS.make(ROUTER.options(name)), [0] * 4, random.Random(2)
    for _ in range(200):
        turn = any_turn(rng)
        engines = [EngineLoad(f"e{i}", in_flight=n, tokens=60.0 * n) for i, n in enumerate(sent)]
        sent[int(router.choose(turn, engines).engine[1:])] += 1
    assert max(sent) - min(sent) <= MARGIN + 1


def test_least_loaded_breaks_ties_by_name_whatever_the_order() -> None:
    router = ROUTERS.make(ROUTER.options("least_loaded"))
    engines = [EngineLoad("b", 1, 1, 0), EngineLoad("a", 0, 1, 1), EngineLoad("c", 5)]
    assert router.choose(TURN, engines).engine == router.choose(TURN, engines[::-1]).engine == "a"
    assert router.choose(TURN, [EngineLoad("x", 9), EngineLoad("y", 2, 3, 3)]).engine == "y"


def test_a_prefix_stays_with_its_engine_until_that_is_overloaded() -> None:
    router = PrefixAffinity(ROUTER.options("prefix_affinity"), margin=3)
    turn = RouteRequest(10, 5, prefixes=("3.0.solver", "3.solver"))
    assert router.choose(turn, loads(5, 1, 2)).reason is Reason.LEAST_LOADED
    again = router.choose(turn, loads(0, 3, 0))
    assert (again.engine, again.reason) == ("e1", Reason.PREFIX)
    mate = router.choose(RouteRequest(10, 5, prefixes=("3.1.solver", "3.solver")), loads(0, 3, 0))
    assert (mate.engine, mate.reason) == ("e1", Reason.PREFIX), "members of a group begin alike"
    away = router.choose(turn, loads(0, 4, 0))
    assert (away.engine, away.reason) == ("e0", Reason.OVERLOADED)
    assert router.choose(turn, loads(3, 0, 0)).engine == "e0", "that one has it now"
    gone = router.choose(turn, loads(0, 0, 0)[1:])
    assert gone.reason is Reason.LEAST_LOADED


def test_what_a_router_remembers_is_bounded() -> None:
    router = PrefixAffinity(ROUTER.options("prefix_affinity"), remembered=10)
    for number in range(1000):
        router.choose(RouteRequest(1, 1, prefixes=(str(number), f"group {number // 8}")), loads(0, 1))
    assert len(router._engine_of) == 10
    assert router.choose(RouteRequest(1, 1, prefixes=("999",)), loads(2, 0)).reason is Reason.PREFIX
    assert router.choose(RouteRequest(1, 1, prefixes=("5",)), loads(2, 0)).reason is Reason.LEAST_LOADED


def test_length_aware_counts_tokens_and_gives_the_long_tail_room() -> None:
    router = ROUTERS.make(ROUTER.options("length_aware"))
    engines = [EngineLoad("few long", in_flight=2, tokens=900), EngineLoad("many short", in_flight=9, tokens=300)]
    short = router.choose(RouteRequest(10, 30, usual_tokens=40), engines)
    assert (short.engine, short.reason) == ("many short", Reason.FEWEST_TOKENS)
    long = router.choose(RouteRequest(10, 80, usual_tokens=40), engines)
    assert (long.engine, long.reason) == ("few long", Reason.LONG_TAIL)
    assert router.choose(RouteRequest(10, 80), engines).reason is Reason.FEWEST_TOKENS, (
        "nothing is known of lengths yet"
    )


def test_lengths_are_learned_by_kind_and_a_reply_that_outlives_them_is_of_the_tail() -> None:
    lengths = ReplyLengths()
    assert lengths.left("solver", 0, 64) == 64, "nothing known: the limit"
    for _ in range(200):
        lengths.note("solver", 100)
        lengths.note("critic", 10)
    assert 99 < lengths.left("solver", 0, 1000) <= 100
    assert 9 < lengths.left("critic", 0, 1000) <= 11
    assert 29 < lengths.left("solver", 70, 1000) <= 30
    assert lengths.left("solver", 400, 1000) == 400
    assert lengths.left("solver", 400, 450) == 50
    assert 10 < lengths.left("stranger", 0, 1000) < 100, "an average turn"
    for number in range(10_000):
        lengths.note(f"role {number}", 5)
    assert len(lengths._average) < 300


def test_hardware_class_sends_work_where_it_suits() -> None:
    router = ROUTERS.make(ROUTER.options("hardware_class"))
    fast = EngineLoad("fast", hardware=Hardware.PREFILL)
    wide = EngineLoad("wide", hardware=Hardware.DECODE)
    small = EngineLoad("small", hardware=Hardware.CPU)
    long_prompt, long_reply = RouteRequest(4000, 50), RouteRequest(100, 500)
    assert router.choose(long_prompt, [wide, small, fast]).engine == "fast"
    assert router.choose(long_reply, [fast, small, wide]).engine == "wide"
    other = router.choose(long_prompt, [wide, small])
    assert (other.engine, other.reason) == ("wide", Reason.NO_SUCH_HARDWARE)
    assert router.choose(long_reply, [small]).engine == "small"
    full = EngineLoad("wide", in_flight=MARGIN + 1, hardware=Hardware.DECODE)
    away = router.choose(long_reply, [full, small])
    assert (away.engine, away.reason) == ("small", Reason.OVERLOADED)


def test_version_aware_spares_engines_that_hold_the_version_beside_a_newer_one() -> None:
    router = ROUTERS.make(ROUTER.options("version_aware"))
    engines = [
        EngineLoad("ahead", newest=False),
        EngineLoad("asked", in_flight=30),
        EngineLoad("asked 2", in_flight=31),
    ]
    choice = router.choose(TURN, engines)
    assert (choice.engine, choice.reason) == ("asked", Reason.NEWEST)
    assert router.choose(TURN, loads(3, 1, newest=False)).reason is Reason.FORMER


def test_classes_of_devices_are_declared_by_their_names() -> None:
    classes = read_classes("H100=prefill, H20=decode,NVIDIA H20 NVL=prefill")
    assert class_of("NVIDIA H100 80GB HBM3", classes) is Hardware.PREFILL
    assert class_of("NVIDIA H20", classes) is Hardware.DECODE
    assert class_of("nvidia h20 nvl", classes) is Hardware.PREFILL, "the longest name that fits"
    assert class_of("A40", classes) is Hardware.ANY
    assert read_classes("") == {}
    for wrong in ("H100", "H100=", "=cpu", "H100=fast"):
        with pytest.raises(ValueError, match="CLASS is cpu, decode, prefill"):
            read_classes(wrong)


def test_long_replies_have_as_many_engines_as_let_both_kinds_end_together() -> None:
    long, others = (
        RequestKind(share=0.2, tokens=8000, longest=20_000),
        RequestKind(share=0.8, tokens=1000, longest=3000),
    )
    count = dedicated(8, long, others, requests=1600)

    def ends(kind: RequestKind, engines: int) -> float:
        return kind.longest + kind.tokens * kind.share * 1600 / engines / DOUBLING

    worst = {k: max(ends(long, k), ends(others, 8 - k)) for k in range(1, 8)}
    assert worst[count] == min(worst.values())
    assert count == 6
    assert dedicated(8, RequestKind(), others, requests=1600) == 0, "nothing long was asked yet"
    assert dedicated(1, long, others, requests=1600) == 0


def test_some_engines_are_for_long_replies_alone() -> None:
    """Long ones go to the others too, where these have less to do."""
    router, sent = ROUTERS.make(ROUTER.options("skew_aware")), {f"e{i}": EngineLoad(f"e{i}") for i in range(4)}
    went: dict[float, set[str]] = {100.0: set(), 4000.0: set()}
    for number in range(400):
        tokens = 4000.0 if number % 5 == 0 else 100.0
        choice = router.choose(RouteRequest(10, tokens), list(sent.values()))
        sent[choice.engine].in_flight += 1
        sent[choice.engine].tokens += tokens
        if number >= 100:
            went[tokens].add(choice.engine)
            assert choice.reason is (Reason.LONG_TAIL if tokens > 100 else Reason.FEWEST_TOKENS)
    assert went[100.0] < went[4000.0]


def test_replies_to_the_same_task_say_more_than_those_of_the_same_role() -> None:
    lengths = ReplyLengths()
    for _ in range(40):
        lengths.note("solver", 100, task="1.solver")
    lengths.note("solver", 900, task="2.solver")
    assert lengths.left("solver", 0, 2000, task="2.solver") == 900
    assert lengths.left("solver", 0, 2000, task="3.solver") == pytest.approx(125, abs=1)
    for number in range(TASKS):
        lengths.note("solver", 100, task=f"{number + 10}.solver")
    assert lengths.left("solver", 0, 2000, task="2.solver") < 200, "the oldest tasks are forgotten"
