"""Predictions in a process of their own, so that simulating never holds the interpreter of those who serve requests.

Invariants: one process and one prediction at a time; whoever waits longer than `LIMIT_S`, for others or for his own, is
refused with `prediction_slow`, and the process that worked for him is ended, so that the next one finds it free; equal
questions are answered from memory, unless time was short.
"""

import multiprocessing
import signal
import threading
import time
from collections import OrderedDict
from hashlib import sha256
from multiprocessing.connection import Connection

from flexmarl.contracts.specification import ExperimentSpec
from flexmarl.controlplane.common.problems import PredictionSlow
from flexmarl.simulator import SimulationError
from flexmarl.simulator.prediction.predicting import Prediction, predict
from flexmarl.simulator.prediction.profile import Profile

LIMIT_S = 10.0
ENOUGH_S = 3.0
"""No further simulation is begun after so long: a prediction of fewer is one too."""
SPARE_S = 2.0
"""No other split of the devices is simulated that may end later than so long before the limit."""
CAUTION = 1.5
"""How many times as long as those before it a simulation may take."""
KEPT = 64
"""Answers that are remembered."""


class PredictionFailed(RuntimeError):
    """The simulated run came to no end, or what simulates it did."""


class Forecaster:
    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._turn = threading.Lock()
        self._process: multiprocessing.process.BaseProcess | None = None
        self._line: Connection | None = None
        self._answers: OrderedDict[str, Prediction] = OrderedDict()

    def predict(self, spec: ExperimentSpec, profile: Profile) -> Prediction:
        """Predict a run. Raises PredictionSlow after the limit, PredictionFailed when the run would make no step."""
        question = (spec.model_dump_json(), profile.model_dump_json())
        key = sha256("\n".join(question).encode()).hexdigest()
        if key in self._answers:
            return self._answers[key]
        until = time.monotonic() + self._limit_s
        if not self._turn.acquire(timeout=self._limit_s):
            raise _slow(self._limit_s)
        try:
            answer = self._ask(question, until)
        finally:
            self._turn.release()
        if not answer.split.stopped:  # another time there may be time for all of it
            self._answers[key] = answer
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

    def _ask(self, question: tuple[str, str], until: float) -> Prediction:
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
        return Prediction.model_validate_json(text)

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
            spec, profile, until = line.recv()
        except EOFError:
            return
        try:
            told = _predicted(ExperimentSpec.model_validate_json(spec), Profile.model_validate_json(profile), until)
        except SimulationError as error:
            line.send((False, str(error)))
        else:
            line.send((True, told.model_dump_json()))


def _predicted(spec: ExperimentSpec, profile: Profile, limit: float) -> Prediction:
    """Predict by a moment of the clock that all processes of a host share."""
    began = time.monotonic()

    def spare(made: int) -> bool:
        now = time.monotonic()
        return now + CAUTION * (now - began) / made < limit - SPARE_S

    return predict(spec, profile, lambda: time.monotonic() < began + ENOUGH_S, spare)


def _slow(limit_s: float) -> PredictionSlow:
    return PredictionSlow(
        f"No prediction within {limit_s:g} s. Try again, plan with predict: false, or ask manage.py simulate.",
        headers={"Retry-After": "5"},
    )


FORECASTER = Forecaster()
"""This web process's."""
