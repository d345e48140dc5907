"""Predictions in a process of their own, so that simulating never holds the interpreter of those who serve requests.

Invariants: one process and one prediction at a time; whoever waits longer than `LIMIT_S`, for others or for his own, is
refused with `prediction_slow`, and the process that worked for him is ended, so that the next one finds it free; equal
questions are answered from memory, unless time was short. At most `MOST_AT_ONCE` are here at a time: whoever waits
holds a place of those who serve requests, and all other requests need one.
"""

import multiprocessing
import signal
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import TypeVar

from flexmarl.contracts.base import Record, Strict
from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.problems import PredictionSlow
from flexmarl.simulator import SimulationError
from flexmarl.simulator.choosing.choosing import search
from flexmarl.simulator.choosing.explaining import told
from flexmarl.simulator.choosing.objectives import DeviceChoice, DeviceObjective, KnownSpeeds, PoolStock
from flexmarl.simulator.choosing.setups import DeviceQuestion
from flexmarl.simulator.prediction.predicting import Prediction, predict
from flexmarl.simulator.prediction.profile import Profile

LIMIT_S = 10.0
MOST_AT_ONCE = 2
"""The one that is answered, and who waits for it; by default half of the places of a web process for the API."""
ENOUGH_S = 3.0
"""No further simulation is begun after so long: a prediction of fewer is one too."""
SPARE_S = 2.0
"""No other split of the devices is simulated that may end later than so long before the limit."""
CAUTION = 1.5
"""How many times as long as those before it a simulation may take."""
FURTHER = 3
"""Simulations of chosen devices that there must be time for, before further ones are looked for."""
KEPT = 64
"""Answers that are remembered."""


A = TypeVar("A", bound=Record)


class PredictionQuestion(Strict):
    spec: ExperimentSpec
    profile: Profile


class ChoiceQuestion(Strict):
    spec: ExperimentSpec
    wish: DeviceObjective
    stock: tuple[PoolStock, ...]
    known: tuple[KnownSpeeds, ...]
    left_out: tuple[str, ...] = ()
    unmeasured: tuple[str, ...] = ()

    def question(self) -> DeviceQuestion:
        """Return what is asked of the simulator."""
        return DeviceQuestion(self.spec, self.wish, self.stock, self.known)


Asked = PredictionQuestion | ChoiceQuestion


class PredictionFailed(RuntimeError):
    """The simulated run came to no end, or what simulates it did."""


class Forecaster:
    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._places = threading.Semaphore(MOST_AT_ONCE)
        self._process: multiprocessing.process.BaseProcess | None = None
        self._line: Connection | None = None
        self._answers: OrderedDict[str, str] = OrderedDict()

    def predict(self, spec: ExperimentSpec, profile: Profile) -> Prediction:
        """Predict a run. Raises PredictionSlow after the limit, PredictionFailed when the run would make no step."""
        asked = PredictionQuestion(spec=spec, profile=profile)
        return self._answered(asked, Prediction, lambda made: not made.split.stopped)

    def choose(self, asked: ChoiceQuestion) -> DeviceChoice:
        """Choose devices for a run. Raises PredictionSlow after the limit, PredictionFailed when none can run it."""
        return self._answered(asked, DeviceChoice, lambda made: not made.stopped)

    def _answered(self, asked: Asked, kind: type[A], whole: Callable[[A], bool]) -> A:
        """Answer a question; what is whole is remembered: for all else there may be time another time."""
        question = asked.model_dump_json()
        key = sha256(f"{type(asked).__name__}\n{question}".encode()).hexdigest()
        if key in self._answers:
            return kind.model_validate_json(self._answers[key])
        if not self._places.acquire(blocking=False):
            raise _refused(f"{MOST_AT_ONCE} other predictions are under way.")
        try:
            text = self._in_turn((type(asked).__name__, question))
        finally:
            self._places.release()
        answer = kind.model_validate_json(text)
        if whole(answer):
            self._answers[key] = text
        while len(self._answers) > KEPT:
            self._answers.popitem(last=False)
        return answer

    def stop(self) -> None:
        """End the process; the next question starts another."""
        if self._process is not None and self._line is not None:
            self._process.kill()
            self._process.join()
            self._line.close()
        self._process = self._line = None

    def _in_turn(self, question: tuple[str, str]) -> str:
        until = time.monotonic() + self._limit_s
        if not self._turn.acquire(timeout=self._limit_s):
            raise _slow(self._limit_s)
        try:
            return self._ask(question, until)
        finally:
            self._turn.release()

    def _ask(self, question: tuple[str, str], until: float) -> str:
        if self._process is None or not self._process.is_alive():
            self.stop()
            self._start()
        assert self._line is not None
        try:
            self._line.send((*question, until))
            if not self._line.poll(max(0.0, until - time.monotonic())):
                self.stop()
                raise _slow(self._limit_s)
            made, text = self._line.recv()
        except (EOFError, OSError):
            self.stop()
            raise PredictionFailed("The prediction process exited. Try again.") from None
        if not made:
            raise PredictionFailed(f"The simulated run completes no step. {text}")
        return str(text)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._line, theirs = context.Pipe()
        self._process = context.Process(target=answer, args=(theirs,), name="forecaster", daemon=True)
        self._process.start()
        theirs.close()


def answer(line: Connection) -> None:
    """Answer questions until nobody can ask any more; what a simulation says of itself is an answer too."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asks is told, and ends this process with itself
    while True:
        try:
            name, question, until = line.recv()
        except EOFError:
            return
        try:
            made = _ANSWERS[name](question, until)
        except SimulationError as error:
            line.send((False, str(error)))
        else:
            line.send((True, made.model_dump_json()))


def _predicted(question: str, limit: float) -> Prediction:
    """Predict by a moment of the clock that all processes of a host share."""
    asked, began = PredictionQuestion.model_validate_json(question), time.monotonic()

    def spare(made: int) -> bool:
        now = time.monotonic()
        return now + CAUTION * (now - began) / made < limit - SPARE_S

    return predict(asked.spec, asked.profile, lambda: time.monotonic() < began + ENOUGH_S, spare)


def _chosen(question: str, limit: float) -> DeviceChoice:
    """Choose devices by a moment of that clock; the search ends early enough for both ends of the chosen ones."""
    asked, began = ChoiceQuestion.model_validate_json(question), time.monotonic()
    made = 0

    def spare(further: int) -> bool:
        nonlocal made
        made, now = made + 1, time.monotonic()
        return now + further * CAUTION * (now - began) / made < limit - SPARE_S

    found = search(asked.question(), spare=lambda: spare(FURTHER))
    return told(found, asked.left_out, asked.unmeasured, spare=lambda: spare(1))


_ANSWERS: Mapping[str, Callable[[str, float], Record]] = {
    PredictionQuestion.__name__: _predicted,
    ChoiceQuestion.__name__: _chosen,
}


def _slow(limit_s: float) -> PredictionSlow:
    return _refused(f"No prediction within {limit_s:g} s.")


def _refused(why: str) -> PredictionSlow:
    text = f"{why} Try again, plan with predict: false, or ask manage.py simulate."
    return PredictionSlow(text, headers={"Retry-After": "5"})


FORECASTER = Forecaster()
"""This web process's."""
