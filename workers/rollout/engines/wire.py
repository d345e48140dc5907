"""The engine's HTTP dialect: OpenAI completions with token ids, over JSON.

`POST /v1/completions` takes many prompts of one policy version at once. With `stream` true the answer is server-sent
events, each carrying the choices that finished since the last; otherwise one body. An engine that does not wholly hold
(policy, version, digest) answers 409 with what it holds. Encoded with msgspec: every hop is on the path of a turn.

A reply can be carried on elsewhere. With `progress` a stream also tells, every `PROGRESS_S`, what running replies made
since they were last told (a choice without finish reason, its tokens from position `at` on), and if there is nothing to
tell an event without choices: a stream that stays silent for longer belongs to an engine that stands still. A choice
never repeats what was told. The next engine gets `done`, what others made so far, and goes on behind it: since the draw
of a token depends on (seed, position) alone, the same weights make the same reply, however often it moved.
"""

import msgspec

PROGRESS_S = 1.0
"""Between two events of a stream that asked for progress."""

UNCERTAINTIES = 3
"""Numbers that tell how uncertain a token was."""


class Done(msgspec.Struct, omit_defaults=True):
    """What engines made of a reply so far; all of it is aligned."""

    token_ids: list[int]
    logprobs: list[float]
    segments: list[int]
    """version, tokens, version, tokens, ... over `token_ids`."""
    uncertainty: list[float] = []
    """As of a choice."""


class SamplingParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How tokens are drawn beside temperature and allowed ids, with vLLM's meaning and in its order: the penalty on
    logits, the temperature, then min_p, top_k and top_p. Greedy replies heed the penalty and `structured` alone."""

    stop: tuple[str, ...] = ()
    """The reply ends with, and includes, the token that completes the first of these texts."""
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    structured: str = ""
    """A `StructuredOutput` of the specification as JSON; empty: anything."""
    library: str = ""
    """What must make the masks of `structured`, with its version, where a trainer is to make them again; empty: what
    there is."""

    uncertainty: bool = False
    """Tell how uncertain each token was: changes nothing of how it is drawn. Torch engines alone do."""

    @property
    def truncates(self) -> bool:
        """Whether some tokens are never drawn."""
        return self.top_p < 1.0 or self.top_k > 0 or self.min_p > 0.0


PLAIN = SamplingParameters()


class CompletionRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    model: str
    """Policy name."""
    prompt: list[list[int]]
    max_tokens: int
    seeds: list[int]
    """One 63-bit seed per prompt. The draw of token t depends on (seed, t) alone, not on the batch."""
    request_ids: list[str] = []
    """One id per prompt, for abort; generated when absent."""
    version: int = -1
    digest: str = ""
    follow: str = ""
    """Empty: the named version makes all tokens. Else it is the oldest allowed, the newest held answers, and a load
    takes running replies over: `continue` keeps the attention cache, `resume` computes it anew from prompt and tokens
    so far, `restart_turn` begins the reply anew."""
    temperature: float = 1.0
    """0 is greedy."""
    allowed_token_ids: list[int] = []
    stop_token_ids: list[int] = []
    """The reply ends with, and includes, the first of these."""
    sampling: SamplingParameters = PLAIN
    stream: bool = False
    progress: bool = False
    """With `stream`: tell tokens of running replies. One that follows by `restart_turn` is told whole, at its end."""
    done: list[Done] = []
    """One per prompt, or none at all: tokens of its reply that need not be made again; `max_tokens` counts them. An
    engine that computes a reply from its request alone (`ordered`), and one asked to restart it, refuse any."""


class CompletionChoice(msgspec.Struct, omit_defaults=True):
    index: int
    token_ids: list[int]
    logprobs: list[float]
    """Log-probability of each emitted token under the distribution it was drawn from (masks, penalty, temperature and
    truncation applied)."""
    finish_reason: str
    """Empty while the reply goes on. `stop` and `length` end it. `abort` and `out_of_memory` hand it back to be carried
    on elsewhere. `nonfinite` and `too_complex` give it up, whoever computes it: the next token's log-probability was
    no number, or which tokens `structured` allows there exceeds the limits of grammars."""
    segments: list[int]
    """version, tokens, version, tokens, ... over `token_ids`."""
    at: int = 0
    """Tokens of the reply before these: told in earlier events of this stream, or `done` before it."""
    to: int = 0
    """With `abort`: lease of the engine where the reply is to go on; 0: anywhere."""
    steps: list[int] = []
    """Of a reply made by block diffusion: in which step of its block each token was revealed, from 0; its
    log-probability is the one in that step."""
    uncertainty: list[float] = []
    """Entropy in nats, mass of the likeliest token and mass of the five likeliest, token after token, of the
    distribution that each was drawn from; empty where the request does not ask for it."""


class Load(msgspec.Struct):
    """Queue depth returned with every reply: the router's signal."""

    running: int
    waiting: int


class CompletionResponse(msgspec.Struct):
    model: str
    choices: list[CompletionChoice]
    load: Load
    incarnation: str


class HeldVersion(msgspec.Struct):
    version: int
    digest: str


class NotHeld(msgspec.Struct, omit_defaults=True):
    """Body of a 409 or 422."""

    code: str
    detail: str
    holds: dict[str, HeldVersion] = {}
    request_ids: list[str] = []
    """Of a 422: the requests that are wrong, those beside them may be asked again; none named: all of them."""


class LoadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /load`: hold this version of a policy, pulled from the state plane by digest."""

    policy: str
    version: int
    digest: str
    keeps: list[int] = []
    """Versions that go on being served besides; none of them held: the one loaded last."""
    order: int = 0
    """Number of the command, if it has one: behind a later one of its policy it is refused, however late it comes."""
    tokenizer: str = ""
    """Digest of the tokenizer that the run speaks to the policy by; an engine that knows another one refuses."""


class UnloadRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /unload`: take no new request of a policy, forget its weights once nothing of it runs; then answer.

    What has not begun is handed back as aborted, for its sender to ask elsewhere. What runs is handed back with the
    tokens it has if `hand_over`, and on a vLLM engine always; else it is made to its end.
    """

    policy: str
    hand_over: bool = False
    """Another engine may carry on what runs. An `ordered` engine, which resumes nothing, ends it nonetheless."""
    order: int = 0
    """As of a load."""
    to: int = 0
    """Lease of the engine where what is handed back is to go on; 0: anywhere."""


class SleepRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /sleep`: give the memory back; answers when nothing is held any more."""

    drain: bool = False
    """Take no new request from now on and make those that run to their end; else an engine with requests refuses."""
    order: int = 0
    """As of a load: behind a later one to sleep or to wake it is refused."""


class Slept(msgspec.Struct):
    bytes: int
    """Weights and attention caches that were let go."""


class WakeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """`POST /wake`: hold again what was held before; answers with it."""

    empty: bool = False
    """Hold nothing instead: other versions are loaded next."""
    order: int = 0
    """As of a sleep."""


class AbortRequest(msgspec.Struct, forbid_unknown_fields=True):
    request_ids: list[str]


class Stats(msgspec.Struct):
    incarnation: str
    running: int
    waiting: int
    slots: int
    generated_tokens: int
    prompt_tokens: int
    holds: dict[str, HeldVersion]
    cache_use: float | None = None
    """Share of the attention cache's blocks in use; null where it grows with its rows (torch)."""
    cached_tokens: int | None = None
    """Of `prompt_tokens`, those whose keys an earlier request had left: the prefix cache's hits; null without one."""
