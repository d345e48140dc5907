"""What the cluster in memory is made of: small specifications, chances of faults, children."""

import hashlib
from dataclasses import dataclass, field

from pydantic import ValidationError

from flexmarl.algorithms.ageing import too_old
from flexmarl.contracts import commands as c
from flexmarl.contracts import events as e
from flexmarl.contracts.problems import problems_of
from flexmarl.contracts.rules import broken_rules
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.wire import TOO_OLD, EpisodeOutcome, EpisodeStatus, SampleRef, TrainStats


def spec_data(**changes):
    """Return a small experiment with changes, `a__b` for what is below a."""
    data = {
        "seed": 3,
        "agents": {"speaker": {}, "listener": {}},
        "environment": {"type": "reference_game"},
        "batch": {"tasks_per_step": 6, "episodes_per_task": 3, "micro_batch_groups": 2, "rollout_groups": 2},
        "budget": {"train_steps": 4},
        "evaluation": {"every_steps": 2, "tasks": 5},
        "checkpoints": {"every_steps": 3},
    }
    for path, value in changes.items():
        node = data
        *parents, leaf = path.split("__")
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = value
    return data


def make_spec(**changes):
    return ExperimentSpec.model_validate(spec_data(**changes))


def refusals(**changes):
    """Return what is refused of an experiment with changes: of its fields or, where these are right, by rules."""
    data = spec_data(**changes)
    try:
        return broken_rules(ExperimentSpec.model_validate(data))
    except ValidationError as error:
        return problems_of(error, ExperimentSpec, data)


def digest(*parts):
    return hashlib.sha256(repr(parts).encode()).hexdigest()


@dataclass
class Faults:
    """Chances per scheduling step."""

    twice: float = 0.0
    child_death: float = 0.0
    lease_end: float = 0.0
    recall: float = 0.0
    surplus_recall: float = 0.0
    """An administrator wants a lease's device back, or lets it stay after all."""
    gang_recall: float = 0.0
    """The arbiter wants back all that a run holds which lacks a part."""
    uncommitted: float = 0.0
    """A child did the work, but the node died before it wrote it down: the command is done again."""
    refused: float = 0.0
    zombie: float = 0.0
    """A voided command still reaches its child, late and without a transaction."""
    episode_failure: float = 0.0


@dataclass
class Child:
    incarnation: str
    holds: dict = field(default_factory=dict)
    orders: dict = field(default_factory=dict)
    """Policy -> number of the last load."""
    asleep: bool = False
    turned: int = 0
    """Last command by which its device changed hands."""
    trains: dict = field(default_factory=dict)
    suspended: dict = field(default_factory=dict)
    """Policy -> ticket, and the micro-batches in its accumulator."""
    resumed: list = field(default_factory=list)
    """Tickets that were taken up here: asked again, it is done already."""


def figures(rows):
    """What a trainer tells of a micro-batch."""
    return TrainStats(rows=rows, tokens=3 * rows, z=3.0 * rows, loss_sum=1.0, entropy_sum=2.0, seconds=0.01)


def shares(command, child, mate, number):
    """Do what turns a shared device over. Returns why a child refuses; asserts that never both have something on it."""
    turns = isinstance(command, c.SleepEngine | c.WakeEngine | c.VacateTrainer)
    if (turns or isinstance(command, c.BindPolicy)) and number < child.turned:
        return "superseded"
    if turns:
        child.turned, child.asleep = number, isinstance(command, c.SleepEngine)
    if isinstance(command, c.SleepEngine):
        child.holds.clear()
    elif isinstance(command, c.VacateTrainer):
        child.trains.clear()
    elif isinstance(command, c.LoadWeights) and child.asleep:
        return "asleep"
    elif mate is not None and isinstance(command, c.LoadWeights):
        assert not mate.trains, f"an engine loads while {sorted(mate.trains)} are on its device"
    elif mate is not None and isinstance(command, c.BindPolicy):
        assert not mate.holds, f"{command.policy} is bound where an engine holds {mate.holds}"
    return None


def bound(command, common, history):
    """Tell at which version a policy is held."""
    version = command.version or 0
    told = {"created": command.version is None, "resumed": bool(command.resume), "seconds": 0.01}
    return e.PolicyBound(**common, policy=command.policy, version=version, digest=history[version], **told)


def suspended(command, common, child, number):
    """Tell where a policy lies."""
    told = {"accumulator": command.accumulator, "ticket": child.suspended[command.policy][0]}
    return e.PolicySuspended(**common, policy=command.policy, **told, bytes=100, seconds=0.01, command_no=number)


def turned(command, common, number):
    """Tell that a device was turned over."""
    if isinstance(command, c.VacateTrainer):
        return e.TrainerVacated(**common, command_no=number)
    if isinstance(command, c.SleepEngine):
        return e.EngineSlept(**common, bytes=100, seconds=0.01, command_no=number)
    return e.EngineWoke(**common, seconds=0.01, command_no=number)


def called_back(cluster):
    """Somebody waits for the device of a child: its run may let an engine leave. Returns a key and the fact."""
    cluster.recalls += 1
    event = e.SurplusRecalled(lease_id=cluster.rng.choice(sorted(cluster.children)), reason="run 2 waits")
    return f"surplus:{cluster.recalls}", event


def lost(lease_id, child):
    """A child was killed. Returns a key and the fact."""
    return f"lost:{child.incarnation}", e.ChildLost(lease_id=lease_id, incarnation=child.incarnation, reason="killed")


def granted(cluster, command):
    """Lease devices: engines, trainers, and trainers that share the devices of the first engines."""
    engines, trainers = (
        [lease(cluster, use) for _ in range(count)]
        for use, count in ((e.DeviceUse.ENGINE, command.engines), (e.DeviceUse.TRAINER, command.trainers))
    )
    return [*engines, *trainers, *(lease(cluster, e.DeviceUse.TRAINER, own) for own in engines[: command.beside])]


def lease(cluster, use, beside=None):
    lease_id, cluster.next_lease = cluster.next_lease, cluster.next_lease + 1
    cluster.uses[lease_id] = use
    if beside is None:
        return e.GrantedDevice(lease_id=lease_id, device_id=f"box.cpu{lease_id}", use=use)
    cluster.mates |= {beside.lease_id: lease_id, lease_id: beside.lease_id}
    return e.GrantedDevice(lease_id=lease_id, device_id=beside.device_id, use=use, beside=beside.lease_id)


def load(command, child, number):
    """Serve a version beside the one that is to be kept; what is held changes nothing, what is late is refused."""
    if number < child.orders.get(command.policy, 0):
        return "superseded"
    child.orders[command.policy] = number
    held = child.holds.setdefault(command.policy, [])
    if command.version not in held:
        stay = [version for version in held if version in command.keeps] or held
        child.holds[command.policy] = [*stay[-1:], command.version]
    return None


def unload(command, child, number):
    """Forget a policy; what is late is refused."""
    if number < child.orders.get(command.policy, 0):
        return "superseded"
    child.orders[command.policy] = number
    child.holds.pop(command.policy, None)
    return None


def bind(cluster, command, child):
    """Hold a policy; one that was suspended with what its accumulator had, as long as that trainer lives."""
    epoch, ids = f"{command.version or 0}:{child.incarnation}", []
    if command.resume:
        life, policy, _ = command.resume.split("/")
        keeper = next((x for x in cluster.children.values() if x.incarnation == life), None)
        if command.resume in child.resumed:
            return None
        if keeper is None or keeper.suspended.get(policy, ("",))[0] != command.resume:
            return "state"
        ids = keeper.suspended.pop(policy)[1]
        child.resumed.append(command.resume)
    child.trains[command.policy] = (epoch, ids)
    return None


def suspend(cluster, command, child):
    if command.policy in child.suspended and command.policy not in child.trains:
        return None
    accumulator, ids = child.trains.get(command.policy, ("", []))
    if accumulator != command.accumulator:
        return "not_bound"
    cluster.lives += 1
    del child.trains[command.policy]
    child.suspended[command.policy] = (f"{child.incarnation}/{command.policy}/{cluster.lives}", ids)
    return None


def answers(command, engine, policy, version):
    """Tell whether an engine answers for a version: it holds it, or a newer one that the group follows."""
    held = engine.holds.get(policy, ())
    return version in held or (policy in command.follows and any(other >= version for other in held))


def answered(command, engines, places):
    """Tell whether every policy's turns are answered: by one engine for all, or by any where they hold some only."""
    wanted = {name: pin.version for name, pin in command.pins.items()}
    if places is not None:
        return all(any(answers(command, x, n, v) for x in engines) for n, v in wanted.items())
    return any(all(answers(command, x, n, v) for n, v in wanted.items()) for x in engines)


def segments(cluster, command, role):
    """A policy that follows may be answered by newer weights from some token on."""
    policy = cluster.spec.policy_of(role)
    if command is None or policy not in command.follows:
        return ()
    pinned, newest = command.pins[policy].version, len(cluster.versions[policy]) - 1
    if newest == pinned:
        return ()
    return (pinned, 1, cluster.rng.randint(pinned, newest), 2)


def outgrown(cluster, command):
    """Tell, of an episode whose first turn the pinned weights answered, whether it is given up before its second.

    Some are past their last turn when newer weights come.
    """
    bounds = cluster.spec.abandon_bounds()
    if not bounds or cluster.rng.random() < 0.3:
        return ""
    pinned = {name: command.pins[name].version for name in bounds}
    return too_old(pinned, {name: len(history) - 1 for name, history in cluster.versions.items()}, bounds)


def episode(cluster, member, command=None):
    if cluster.rng.random() < cluster.faults.episode_failure:
        return EpisodeOutcome(member=member, attempt=3, status=EpisodeStatus.FAILED, reason="environment: step")
    if command is not None and (why := outgrown(cluster, command)):
        return EpisodeOutcome(
            member=member, attempt=1, status=EpisodeStatus.CANCELLED, reason=f"{TOO_OLD} {why}", wasted=2
        )
    score = cluster.rng.choice((0.0, 0.5, 1.0))
    samples = tuple(
        SampleRef(
            role=role, turn=turn, tokens=3, reward=score, segments=segments(cluster, command, role) if command else ()
        )
        for role in cluster.spec.agents
        for turn in range(cluster.rng.randint(1, cluster.turns))
    )
    return EpisodeOutcome(
        member=member,
        attempt=1,
        status=EpisodeStatus.FINISHED,
        scores=dict.fromkeys(cluster.spec.agents, score),
        team_score=score,
        solved=score == 1.0,
        samples=samples,
        facts={"dishes": score},
    )


def replayed(cluster, command, row, made_by):
    """Train a row again: it was trained, its last step is an earlier one, and it is not too old or used up."""
    rule, before = cluster.spec.sampling.replay, cluster.replays.setdefault(row, [])
    assert cluster.trained[row][0] == command.policy
    assert max([cluster.trained[row][1], *before]) < command.next_version, f"{row} twice in a step"
    assert command.next_version - 1 - made_by <= rule.max_age, f"{row} is too old"
    before.append(command.next_version)
    assert len(before) <= rule.max_uses, f"{row} is used up"


def applied(cluster, command):
    """Note the rows of a committed step: each is trained once, and no older than its policy's bound."""
    for micro_batch in command.micro_batches:
        for s in cluster.micro_batches[command.policy, micro_batch]:
            key = (s.draw, s.member, s.attempt, s.role, s.turn)
            if (command.policy, micro_batch) in cluster.replayed:
                replayed(cluster, command, key, cluster.made_by(s, command.policy))
                continue
            assert key not in cluster.trained, f"{key} trained twice"
            cluster.trained[key] = (command.policy, command.next_version)
            lag = command.next_version - 1 - cluster.made_by(s, command.policy)
            rule = cluster.spec.lag_policy_of(command.policy)
            most = lag if rule.at_cut == "train" else rule.bound
            assert 0 <= lag <= most, f"row of {lag} versions before"
            cluster.lags.add(lag)
            cluster.lags_of.setdefault(command.policy, set()).add(lag)
