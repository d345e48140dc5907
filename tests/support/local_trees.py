"""A run in one process in whose groups members continue others, as workers play them."""

from collections.abc import Sequence

from flexmarl.algorithms.prefix_predictor import PrefixBelief, examples_of, learn
from flexmarl.contracts.commands import PlayGroups
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.contracts.specification.branch_controllers import ContinuingOptions
from flexmarl.contracts.wire import EpisodeStatus, Origin
from flexmarl.store.data.groups import SettledGroup
from tests.support.local_training import LocalTraining, _Episode
from workers.rollout.continuing import Tree, starts
from workers.rollout.episode import EpisodeAttempt, checked
from workers.rollout.recorder import outcome_of
from workers.rollout.speech import Seat
from workers.rollout.stages import Here
from workers.rollout.tracks import Track


class LocalTrees(LocalTraining):
    """Plays trees where the specification continues episodes, and plain groups otherwise."""

    def __init__(self, spec: ExperimentSpec, home: str, device: str = "cpu") -> None:
        super().__init__(spec, home, device)
        self.prefixes = PrefixBelief()
        self.mixed = 0
        """Groups some of whose episodes were solved and some not."""
        controller = spec.sampling.branch_controller
        self._learns = isinstance(controller, ContinuingOptions) and controller.predictor == "fitted"

    def step(self) -> None:
        super().step()
        if self._learns:
            learn(self.prefixes, self.steps_done - 1)

    def _observe(self, draw: int, settled: SettledGroup) -> None:
        episodes = settled.event.episodes
        self.mixed += len({episode.solved for episode in episodes}) > 1
        rows = examples_of(episodes, self.spec.environment.facts().best_score)
        self.prefixes.waiting.setdefault(self.steps_done, {})[draw] = rows
        super()._observe(draw, settled)

    def play(self, draws: Sequence[int], origin: Origin, members: int) -> list[list[EpisodeAttempt]]:
        count = self.spec.sampling.branch_controller.continuations(members)
        if origin is Origin.EVAL or not count:
            return super().play(draws, origin, members)
        seats = self._seats(greedy=False)
        trees = [Tree(draw, range(members - count), range(members - count, members)) for draw in draws]
        begun = [
            [(self._begin(tree.draw, one, origin, seats), Track(keeps=True)) for one in tree.roots] for tree in trees
        ]
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
        outcomes = [outcome_of(episode.attempt, seats) for episode, _ in begun]
        found = [(self._begin(tree.draw, member, Origin.TRAIN, seats), Track()) for member in tree.others]
        for (episode, track), branch in zip(found, starts(self.spec, tree, outcomes, order), strict=False):
            start = next(one for one in begun[branch.root][1].kept if one.turns == branch.turns)
            episode.environment = start.live.copied().environment
            episode.speech = start.speech.continued(episode.attempt.breaks)
            episode.asks = episode.environment.asks()
            track.branch = branch
        return found

    def _play_all(self, pairs: list[tuple[_Episode, Track]], seats: dict[str, Seat]) -> None:
        live = pairs
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
