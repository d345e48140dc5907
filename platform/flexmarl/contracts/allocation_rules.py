"""Who is trained on which trainer devices: one refusal per broken rule, with a legal value."""

from collections.abc import Iterator

from flexmarl.contracts.problems import Problem
from flexmarl.contracts.specification.experiment import ExperimentSpec
from flexmarl.contracts.specification.resources import MOST_TRAINING_DEVICES
from flexmarl.contracts.specification.rollout_window import MeasuredWindow
from flexmarl.contracts.specification.team import Lora

_WINDOW = "/mechanisms/allocation/window/type"


def allocation_rules(spec: ExperimentSpec) -> Iterator[Problem]:
    """Return every broken rule of who is trained where."""
    yield from _gangs(spec)
    wrong = list(_homes(spec))
    yield from wrong
    yield from _of_their_own(spec)
    yield from _window(spec)
    if spec.mechanisms.allocation.type == "static":
        yield from _fixed_sizes(spec)
        if not wrong:
            crowded = list(_crowded(spec))
            yield from crowded or _places_missing(spec)
    if spec.mechanisms.allocation.type == "colocated":
        yield from _colocated(spec)


def _homes(spec: ExperimentSpec) -> Iterator[Problem]:
    """Chosen devices are those of the run, as many as the policy takes, and only where they do not change."""
    allocation, devices = spec.mechanisms.allocation, spec.resources.training_devices
    for name, places in allocation.homes.items():
        where = f"/mechanisms/allocation/homes/{name}"
        if allocation.type == "agent_centric":
            yield Problem(
                pointer=where,
                code="not_read",
                detail="homes applies to static and colocated allocation only; other types choose devices on demand.",
                hint="Remove homes, or set type: static.",
            )
        elif name not in spec.trainable_policies():
            yield Problem(
                pointer=where,
                code="unknown_policy",
                detail=f"{name} is not a trained policy.",
                hint=f"Trained policies: {', '.join(spec.trainable_policies())}.",
            )
        elif not _fits(places, spec.policies[name].devices.least, devices):
            count = spec.policies[name].devices.least
            yield Problem(
                pointer=where,
                code="wrong_devices",
                detail=f"{name} needs {count} different indices of the run's {devices} trainer devices, counted "
                "from 0.",
                hint=f"Set {list(range(count))}.",
            )


def _of_their_own(spec: ExperimentSpec) -> Iterator[Problem]:
    """Trainers with devices of their own beside those that share: fewer than all, and something needs the others."""
    allocation, resources = spec.mechanisms.allocation, spec.resources
    own, where = allocation.own_devices, "/mechanisms/allocation/own_devices"
    if allocation.type != "colocated":
        if own:
            yield Problem(
                pointer=where,
                code="not_read",
                detail=f"With {allocation.type}, every trainer has its own device.",
                hint="Set 0, or type: colocated.",
            )
        return
    for name in allocation.homes:
        if name in spec.policies and spec.policies[name].devices.most > spec.policies[name].devices.least:
            yield Problem(
                pointer=f"/policies/{name}/devices/most",
                code="not_read",
                detail=f"{name} has assigned devices and always uses its minimum number.",
                hint=f"Set {spec.policies[name].devices.least}, or remove {name} from homes.",
            )
    if own >= resources.training_devices:
        yield Problem(
            pointer=where,
            code="too_many_devices",
            detail=f"Of {resources.training_devices} trainers, {own} have their own devices, so none shares one.",
            hint=f"Set {resources.training_devices - 1}, or type: agent_centric.",
        )


def _window(spec: ExperimentSpec) -> Iterator[Problem]:
    """A window ends play on shared devices: what is left of it goes on elsewhere, under the same weights."""
    allocation, resources = spec.mechanisms.allocation, spec.resources
    if allocation.window.type == "played":
        return
    if allocation.type != "colocated":
        yield Problem(
            pointer=_WINDOW,
            code="not_read",
            detail=f"With {allocation.type}, trainers share no device with engines.",
            hint="Set played, or type: colocated.",
        )
        return
    overlapping = any(spec.lag_policy_of(name).bound > 0 for name in spec.trainable_policies())
    apart = {
        "own_devices: 0": (allocation.own_devices > 0, "some trainers have devices of their own and train at any time"),
        "engine_policies: null": (resources.engine_policies is not None, "an engine may lack a policy of the step"),
        "engine_versions: 2": (resources.engine_versions == 1, "engines serve one version at a time"),
        "bound: 0 in every lag_policy": (overlapping, "several steps are played at once"),
    }
    for instead, (holds, why) in apart.items():
        if holds:
            yield Problem(
                pointer=_WINDOW,
                code="not_with_window",
                detail=f"Shared devices cannot be taken from play: {why}.",
                hint=f"Set played, or {instead}.",
            )
    window = allocation.window
    if isinstance(window, MeasuredWindow) and window.first_s < window.least_s:
        yield Problem(
            pointer="/mechanisms/allocation/window/first_s",
            code="out_of_range",
            detail=f"first_s is {window.first_s:g}, and no window is shorter than least_s, {window.least_s:g}.",
            hint=f"Set {window.least_s:g} or more.",
        )


def allocation_warnings(spec: ExperimentSpec) -> Iterator[Problem]:
    """Tell of trainers that share devices and are never given anything, and of a window that never ends play."""
    own, resources = spec.mechanisms.allocation.own_devices, spec.resources
    if spec.mechanisms.allocation.window.type != "played" and resources.training_devices >= resources.engines:
        yield Problem(
            pointer=_WINDOW,
            code="never_used",
            detail=f"All {resources.engines} engines share their devices with trainers, so nobody goes on with their "
            "replies, and they play to the end.",
            hint=f"Set rollout_devices: {resources.training_devices + 1}, or played.",
        )
    if own and spec.mechanisms.allocation.type == "colocated" and not _shared_are_needed(spec):
        yield Problem(
            pointer="/mechanisms/allocation/own_devices",
            code="never_used",
            detail=f"The {own} trainers with their own devices have slots for all trained policies, so no policy "
            "uses the shared devices.",
            hint="Set trainer_policies: 1 in /resources, or name policies for the trainers from 0 on in homes.",
        )


def _shared_are_needed(spec: ExperimentSpec) -> bool:
    """Tell whether a policy may wait for a device that engines share."""
    allocation, resources = spec.mechanisms.allocation, spec.resources
    shared = resources.training_devices - allocation.own_devices
    trained = spec.trainable_policies()
    if any(place < shared for name in trained for place in allocation.homes.get(name, ())):
        return True
    if any(spec.policies[name].devices.most > 1 for name in trained):
        return True
    places = resources.trainer_policies
    return places is not None and places * allocation.own_devices < len(trained)


def _fits(places: tuple[int, ...], count: int, devices: int) -> bool:
    """Tell whether these are so many devices of the run, each named once."""
    return len(places) == len(set(places)) == count and all(0 <= place < devices for place in places)


def _fixed_sizes(spec: ExperimentSpec) -> Iterator[Problem]:
    """A policy that never moves has as many devices as it begins with."""
    for name in spec.trainable_policies():
        devices = spec.policies[name].devices
        if devices.most > devices.least:
            yield Problem(
                pointer=f"/policies/{name}/devices/most",
                code="not_read",
                detail=f"Static devices do not change, so {name} always uses its minimum, {devices.least}.",
                hint=f"Set {devices.least}, or type: agent_centric in /mechanisms/allocation.",
            )


def _crowded(spec: ExperimentSpec) -> Iterator[Problem]:
    """Whoever takes several devices has them for itself, and a device has places for so many others."""
    places = spec.resources.trainer_policies
    taken: dict[int, list[str]] = {}
    for name, chosen in spec.mechanisms.allocation.homes.items():
        for device in chosen:
            there = taken.setdefault(device, [])
            there.append(name)
            gang = next((own for own in there if spec.policies[own].devices.least > 1), None)
            if gang is not None and len(there) > 1:
                detail = f"{gang} uses several devices exclusively; device {device} is assigned twice."
            elif places is not None and len(there) > places:
                detail = f"Device {device} is assigned to {len(there)} policies; trainer_policies allows {places}."
            else:
                continue
            yield Problem(
                pointer=f"/mechanisms/allocation/homes/{name}",
                code="wrong_devices",
                detail=detail,
                hint=f"Assign another device to {name}, or remove it from homes.",
            )


def _places_missing(spec: ExperimentSpec) -> Iterator[Problem]:
    """Where nobody is ever suspended, all must have their places at once, beside those who chose theirs."""
    resources, homes = spec.resources, spec.mechanisms.allocation.homes
    sizes = {name: spec.policies[name].devices.least for name in spec.trainable_policies()}
    free = [size for name, size in sizes.items() if name not in homes]
    gangs, singles = sum(size for size in free if size > 1), free.count(1)
    named = {device for chosen in homes.values() for device in chosen}
    shared = [chosen[0] for name, chosen in homes.items() if sizes[name] == 1]
    places = resources.trainer_policies or max(len(sizes), 1)
    spare = places * len(set(shared)) - len(shared)
    needed = len(named) + gangs + -(-max(0, singles - spare) // places)
    if needed > resources.training_devices:
        hint = "a larger trainer_policies, or type: agent_centric in /mechanisms/allocation."
        yield Problem(
            pointer="/resources/training_devices",
            code="too_few_devices",
            detail=f"Static allocation holds all {len(sizes)} policies at once, which needs {needed} devices.",
            hint=f"Set {needed}, {hint}" if needed <= MOST_TRAINING_DEVICES else f"Set {hint}",
        )


def _colocated_places(spec: ExperimentSpec) -> Iterator[Problem]:
    """Engines that wake load what they serve: whoever has no place of its own would wait for others to leave theirs."""
    resources = spec.resources
    if not resources.has_places(len(spec.policies)):
        return
    places = resources.engines * (resources.engine_policies or 0)
    if places < len(spec.policies):
        yield Problem(
            pointer="/resources/engine_policies",
            code="not_with_colocated",
            detail="Sleeping engines load their policies when they wake, so each policy needs its own slot; "
            f"{resources.engines} engines have {places} slots for {len(spec.policies)} policies.",
            hint="Set null, or more rollout_devices, or type: agent_centric in /mechanisms/allocation.",
        )


def _colocated(spec: ExperimentSpec) -> Iterator[Problem]:
    """What cannot be where engines and trainers have the same devices in turns."""
    resources, mechanisms = spec.resources, spec.mechanisms
    own = mechanisms.allocation.own_devices
    if resources.elastic:
        yield Problem(
            pointer="/resources/rollout_devices",
            code="not_with_colocated",
            detail="Colocated trainers share the devices of a fixed number of engines; this fleet has from "
            f"{resources.least_rollout_devices} to {resources.most_rollout_devices} devices.",
            hint=f"Set {resources.most_rollout_devices}, or type: agent_centric in /mechanisms/allocation.",
        )
    if resources.training_devices - own > resources.engines:
        yield Problem(
            pointer="/resources/training_devices",
            code="too_many_devices",
            detail=f"Colocated trainers share the devices of engines; the run has {resources.engines}.",
            hint=f"Set {resources.engines + own}, or more rollout_devices.",
        )
    if resources.training_pool != resources.rollout_pool and not own:
        yield Problem(
            pointer="/resources/training_pool",
            code="not_read",
            detail="Colocated trainers use the devices of the engines, so both have the same pool.",
            hint=f"Set {resources.rollout_pool}, as in rollout_pool, or type: agent_centric in /mechanisms/allocation.",
        )
    if resources.engine == "vllm":
        yield Problem(
            pointer="/resources/engine",
            code="cannot_sleep",
            detail="A vLLM engine releases memory only when its process ends; a colocated trainer needs it.",
            hint="Set torch, or type: agent_centric in /mechanisms/allocation.",
        )
    yield from _colocated_places(spec)
    if mechanisms.publication.type != "cohort":
        yield Problem(
            pointer="/mechanisms/publication/type",
            code="not_with_colocated",
            detail=f"{mechanisms.publication.type} plays during training; colocated devices do one of them at a time.",
            hint="Set cohort, or type: agent_centric in /mechanisms/allocation.",
        )
    if mechanisms.policy_clock:
        yield Problem(
            pointer="/mechanisms/policy_clock",
            code="not_with_colocated",
            detail="Colocated devices train while no episode is playing, so policies step with their cohort.",
            hint="Set false, or type: agent_centric in /mechanisms/allocation.",
        )


def _gangs(spec: ExperimentSpec) -> Iterator[Problem]:
    """Which policies several trainer ranks can share."""
    most, trained = spec.resources.training_devices, spec.trainable_policies()
    for name, policy in spec.policies.items():
        wanted, where = policy.devices.most, f"/policies/{name}/devices"
        if wanted == 1:
            continue
        if wanted > most:
            yield Problem(
                pointer=where,
                code="too_many_devices",
                detail=f"{name} needs {wanted} trainer devices; training_devices is {most}.",
                hint=f"Set {most}, or training_devices {wanted} in /resources.",
            )
        if name not in trained:
            yield Problem(
                pointer=where,
                code="not_trained",
                detail=f"Every agent of {name} is frozen, so there is nothing to distribute over trainers.",
                hint="Set 1.",
            )
        if isinstance(policy.tuning, Lora):
            yield Problem(
                pointer=where,
                code="not_with_lora",
                detail=f"The adapter of {name} is trained on one device; several ranks would only shard the frozen "
                "base model.",
                hint=f"Set 1, or type: full in /policies/{name}/tuning.",
            )
        advantage, loss = spec.algorithm.advantage, spec.algorithm.loss
        for slot, chosen, whole in (
            ("advantage", advantage.type, advantage.has_critic),
            ("loss", loss.type, loss.paired),
        ):
            if whole:
                yield Problem(
                    pointer=where,
                    code=f"not_with_{chosen}",
                    detail=f"{chosen} compares several rows, and ranks process single rows.",
                    hint=f"Set 1, or another type in /algorithm/{slot}.",
                )
        if spec.mechanisms.ordered:
            yield Problem(
                pointer=where,
                code="not_with_ordered",
                detail="Ordered runs are bitwise reproducible; sums over ranks depend on their number.",
                hint="Set 1, or ordered: false in /mechanisms.",
            )
