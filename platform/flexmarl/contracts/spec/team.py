"""Who plays and with which weights: agents, policies, model sources."""

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from flexmarl.contracts.base import Strict
from flexmarl.contracts.ids import Name
from flexmarl.contracts.spec.mechanisms import LagPolicy


class Sampling(Strict):
    temperature: float = Field(default=1.0, gt=0.0, le=4.0)
    """Softmax temperature in training episodes; evaluation is greedy."""
    max_tokens: int = Field(default=8, ge=1, le=4096)
    """Upper limit of response tokens per turn; an environment may ask for fewer."""


class ExternalModel(Strict):
    """Somebody else's model behind an HTTP endpoint of the OpenAI chat-completions form."""

    url: str = Field(
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$", max_length=500, examples=["https://api.example.org/v1"]
    )
    """Base address; `/chat/completions` is asked below it. Its host must be allowed on the rollout workers."""
    model: str = Field(min_length=1, max_length=200, examples=["judge-large"])
    """Name under which the endpoint knows the model."""
    secret: str = Field(default="", pattern=r"^([A-Z][A-Z0-9_]{0,63})?$", examples=["JUDGE_KEY"])
    """Name of the secret that is sent as a bearer token, never its value, which is FLEXMARL_EXTERNAL_SECRET_<name> on
    the rollout workers. Empty: none is sent."""
    instruction: str = Field(default="", max_length=8000)
    """Said to the model before the observation, in front of what the environment allows as a reply."""
    timeout_s: float = Field(default=60.0, gt=0.0, le=3600.0)
    """How long one request may take; a turn is asked again until its episode's time is over."""
    tokens_per_word: int = Field(default=4, ge=1, le=64)
    """The endpoint's tokens that a word of the environment may take."""


class AgentSpec(Strict):
    policy: Name | None = None
    """Policy the agent acts with; its own one, named after its role, when absent. Agents may share a policy."""
    trainable: bool = True
    """False freezes the agent: its turns are recorded, never trained. An external agent is frozen."""
    sampling: Sampling = Sampling()
    external: ExternalModel | None = None
    """Plays with a model of somebody else instead of a policy of the run: recorded, never trained."""

    @model_validator(mode="before")
    @classmethod
    def _external_is_frozen(cls, data: object) -> object:
        if isinstance(data, dict) and data.get("external") is not None and "trainable" not in data:
            return {**data, "trainable": False}
        return data


class FactoryModel(Strict):
    """A tiny Qwen2-style model and its tokenizer, made by the project itself from a seed."""

    type: Literal["factory"] = "factory"
    size: Literal["S", "M"] = "S"
    """S: hidden 64, 2 layers, 4 heads, about 85 k parameters. M: hidden 128, 2 layers, 4 heads of 32, fit for vLLM."""
    init_std: float | None = Field(default=None, gt=0.0, le=1.0)
    """Standard deviation of the initial weights; about 1/sqrt(hidden) when absent."""
    head_scale: float = Field(default=1.0, gt=0.0, le=10.0)
    """Factor on the language-model head at initialisation: above 1 the first code words are more decisive."""


class FolderModel(Strict):
    """A Hugging Face causal language model in a folder that every node can read."""

    type: Literal["folder"] = "folder"
    path: str = Field(min_length=1, examples=["/models/qwen2.5-0.5b"])


ModelSource = Annotated[FactoryModel | FolderModel, Field(discriminator="type")]


class AdamW(Strict):
    type: Literal["adamw"] = "adamw"
    learning_rate: float = Field(default=2e-3, gt=0.0, le=1.0)
    final_learning_rate_share: float = Field(default=1.0, ge=0.0, le=1.0)
    """The learning rate decays linearly to this share over `budget.train_steps`."""
    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    weight_decay: float = Field(default=0.0, ge=0.0, le=1.0)
    grad_clip_norm: float = Field(default=1.0, gt=0.0)


class SupervisedWarmup(Strict):
    """Cross-entropy steps on the environment's demonstrations before step 0; marked in every chart."""

    steps: int = Field(ge=1, le=10_000)
    batch_size: int = Field(default=256, ge=1, le=65_536)
    learning_rate: float = Field(default=2e-3, gt=0.0, le=1.0)
    max_seconds: float = Field(default=3.0, gt=0.0)


AdapterTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ADAPTER_TARGETS: tuple[AdapterTarget, ...] = get_args(AdapterTarget)


class FullTuning(Strict):
    """Every weight of the policy is trained and published."""

    type: Literal["full"] = "full"


class Lora(Strict):
    """A low-rank adapter is trained and published; the model beneath stays as it is, one for all policies that name
    the same `model` and an adapter."""

    type: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=256)
    """Width of the adapter: a matrix of m x n weights gets rank x (m + n) trained ones beside it."""
    alpha: float = Field(default=16.0, gt=0.0, le=4096.0)
    """What the adapter adds is multiplied by alpha / rank."""
    targets: tuple[AdapterTarget, ...] = Field(default=ADAPTER_TARGETS, min_length=1)
    """Matrices of every layer that are adapted."""
    adapter: str = Field(default="", max_length=4096)
    """A PEFT folder that every node can read, whose adapter training begins with; empty: one that changes nothing."""

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


Tuning = Annotated[FullTuning | Lora, Field(discriminator="type")]


class Devices(Strict):
    """Trainer devices that a policy is trained on at once, as one gang: they start and stop together. Its ranks share
    weights, gradient and optimizer among them; a state that one number of ranks made is taken up by any other."""

    least: int = Field(default=1, ge=1, le=64)
    """It is trained on so many or not at all."""
    most: int = Field(default=1, ge=1, le=64)
    """It may take so many while no other policy waits for one; only where devices are given on demand."""

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
    precision: Literal["fp32", "fp64", "bf16"] = "fp32"
    """Of the weights and of what is computed with them. With bf16 the optimizer moves fp32 masters, gradients are
    gathered in fp32, and a version publishes the masters rounded to bf16: half the bytes."""
    activations: Literal["keep", "recompute"] = "keep"
    """recompute: each layer's intermediate values are computed again in the backward pass instead of being kept. The
    same gradient in less memory, for one more forward pass."""
    tuning: Tuning = FullTuning()
    optimizer: AdamW = AdamW()
    devices: Devices = Devices()
    warmup: SupervisedWarmup | None = None
    lag_policy: LagPolicy | None = None
    """How old its rows may be; as `mechanisms.lag_policy` says when absent. Together: the team's lag vector."""

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
