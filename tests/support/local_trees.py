"""A run in one process in whose groups members continue others, as workers play them."""

from collections.abc import Sequence
from dataclasses import replace

from flexmarl.algorithms.prefix_predictor import PrefixBelief, examples_of, learn
from flexmarl.algorithms.token_branching import learn_thresholds, seen_in
from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.branch_controllers import ContinuingOptions, EchoOptions
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.data.groups import SettledGroup
from tests.support.local_training import LocalTraining, _Episode
from workers.rollout.continuing import Tree, opening_of, starts, starts_within
from workers.rollout.datasets import DatasetLines
from workers.rollout.episode import EpisodeAttempt, checked
from workers.rollout.members import sampling_of
from workers.rollout.recorder import outcome_of
from workers.rollout.speech import Seat
from workers.rollout.stages import Here
from workers.rollout.tracks import Track
from workers.rollout.turns import TurnRequest


class LocalTrees(LocalTraining):
    """Plays trees where the specification continues episodes, and plain groups otherwise."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu", lines: DatasetLines | None = None) -> None:
        super().__init__(spec, home, device, lines)
        self.prefixes = PrefixBelief()
        self.mixed = 0
        """Groups some of whose episodes were solved and some not."""
        controller = spec.sampling.branch_controller
        self._learns = isinstance(controller, ContinuingOptions) and controller.predictor == "fitted"
        self._echo = controller if isinstance(controller, EchoOptions) else None
        self._tracks: dict[int, Track] = {}
        """By the identity of an episode that is played in a tree."""
        self.continued = 0
        """Members that went on within a reply of another."""

    def step(self) -> None:
        super().step()
        if self._learns:
            learn(self.prefixes, self.steps_done - 1)
        if self._echo is not None:
            learn_thresholds(self.prefixes, self.steps_done - 1, self._echo)

    def _observe(self, draw: int, settled: SettledGroup) -> None:
        episodes = settled.event.episodes
        self.mixed += len({episode.solved for episode in episodes}) > 1
        best = self.spec.environment.facts().best_score
        rows = examples_of(episodes, best) if self._echo is None else seen_in(episodes)
        self.prefixes.waiting.setdefault(self.steps_done, {})[draw] = rows
        super()._observe(draw, settled)
        # What a continuation begins with was sampled once, by its root.
        begun = [episode.branch.tokens for episode in episodes if episode.branch is not None]
        self.tokens -= sum(begun)
        self.continued += sum(map(bool, begun))

    def _seats(self, greedy: bool) -> dict[str, Seat]:
        seats = super()._seats(greedy)
        origin = Origin.EVAL if greedy else Origin.TRAIN
        return {role: replace(seat, sampling=sampling_of(self.spec, role, origin)) for role, seat in seats.items()}

    def play(self, draws: Sequence[int], origin: Origin, members: int) -> list[list[EpisodeAttempt]]:
        count = self.spec.sampling.branch_controller.continuations(members)
        if origin is Origin.EVAL or not count:
            return super().play(draws, origin, members)
        seats = self._seats(greedy=False)
        trees = [Tree(draw, range(members - count), range(members - count, members)) for draw in draws]
        begun = [[(self._begin(tree.draw, one, origin, seats), self._kept()) for one in tree.roots] for tree in trees]
        self._play_all([pair for own in begun for pair in own], seats)
        others = [self._onwards(tree, own, seats) for tree, own in zip(trees, begun, strict=True)]
        self._play_all([pair for own in others for pair in own], seats)
        return [[episode.attempt for episode, _ in (*first, *then)] for first, then in zip(begun, others, strict=True)]

    def _onwards(
        self, tree: Tree, begun: list[tuple[_Episode, Track]], seats: dict[str, Seat]
    ) -> list[tuple[_Episode, Track]]:
        order = PlayGroups(
            pool="local", epoch=1, origin=Origin.TRAIN, groups=(), pins=self._pins, sampling_seed=self.spec.seed,
            predictor=tuple(self.prefixes.weights),
        )  # fmt: skip
        if self._echo is not None:
            chosen = starts_within(self._echo, tree, [(episode.attempt, track) for episode, track in begun], order)
        else:
            chosen = starts(self.spec, tree, [outcome_of(episode.attempt, seats) for episode, _ in begun], order)
        found = [(self._begin(tree.draw, member, Origin.TRAIN, seats), Track()) for member in tree.others]
        for (episode, track), branch in zip(found, chosen, strict=False):
            start = next(one for one in begun[branch.root][1].kept if one.turns == branch.turns)
            episode.environment = start.live.copied().environment
            episode.speech = start.speech.continued(episode.attempt.breaks)
            episode.asks = episode.environment.asks()
            track.branch = branch
            track.opening = opening_of(begun[branch.root][0].attempt, branch)
        return found

    def _kept(self) -> Track:
        return Track(keeps=True, likeliest=0 if self._echo is None else self._echo.likeliest)

    def _opened(self, episode: _Episode, place: int, turn: TurnRequest) -> TurnRequest:
        track = self._tracks.get(id(episode))
        if track is None or place:
            return turn
        return track.opened(episode.asks[:1], [turn], len(episode.attempt.turns))[0]

    def _play_all(self, pairs: list[tuple[_Episode, Track]], seats: dict[str, Seat]) -> None:
        live = pairs
        self._tracks = {id(episode): track for episode, track in pairs}
        while live := [(episode, track) for episode, track in live if episode.asks]:
            for episode, track in live:
                here = Here(episode.environment, self.family, {})
                track.keep(here, episode.speech, len(episode.attempt.turns))
            self._advance([episode for episode, _ in live])
        for episode, track in pairs:
            attempt = episode.attempt
            attempt.outcome = checked(episode.environment.outcome(), seats)
            attempt.branch = track.told([turn.reply for turn in attempt.turns])
            attempt.status = EpisodeStatus.FINISHED
        self._tracks = {}
