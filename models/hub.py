"""The language model by the conventions of Hugging Face transformers, an optional package.

Importing this registers `stateir` with AutoConfig and AutoModelForCausalLM. A configuration carries the rule's own text
and its fingerprint, so that a saved model runs where its rule file is not, and refuses to run where that was edited.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

import stateir
from stateir.ir import Rule
from stateir.library import names
from stateir.printer import canonical, fingerprint

from .checkpoint import RuleChanged
from .lm import LanguageModel, LayerCache, LMConfig


class StateirConfig(PretrainedConfig):  # type: ignore[misc]
    """The fields of `LMConfig`, the text of the rule and its hash.

    Without `rule_text`, as in a new configuration, the rule that `rule` names is read. `allow_other_rule`, which
    `from_pretrained` takes too, lets a model be made whose rule is now another text: it goes on with the saved one.

    Raises:
        RuleChanged: if the text does not have its hash.
    """

    model_type = "stateir"

    def __init__(
        self, rule_text: str | None = None, rule_hash: str | None = None, allow_other_rule: bool = False, **kwargs: Any
    ) -> None:
        own = [f.name for f in fields(LMConfig)]
        shape = LMConfig(**{name: kwargs.pop(name) for name in own if name in kwargs})
        for name, value in asdict(shape).items():
            setattr(self, name, value)
        rule = stateir.load(shape.rule) if rule_text is None else stateir.parse(rule_text, filename="config:rule_text")
        self.rule_text, self.rule_hash = canonical(rule), fingerprint(rule)
        if rule_hash is not None and rule_hash != self.rule_hash:
            raise RuleChanged(f"the configuration's rule text has hash {self.rule_hash}, it says {rule_hash}")
        self.allow_other_rule = allow_other_rule
        kwargs.setdefault("tie_word_embeddings", True)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = shape.tokens, shape.hidden, shape.layers
        for name in ("vocab_size", "hidden_size", "num_hidden_layers"):
            kwargs.pop(name, None)
        super().__init__(**kwargs)

    @property
    def shape(self) -> LMConfig:
        return LMConfig(**{f.name: getattr(self, f.name) for f in fields(LMConfig)})

    def to_dict(self) -> dict[str, Any]:
        """Without `allow_other_rule`, which is said at each loading."""
        return {name: x for name, x in super().to_dict().items() if name != "allow_other_rule"}

    def checked_rule(self) -> Rule:
        """The rule of the configuration's text.

        Raises:
            RuleChanged: if the rule that `rule` names is there and is another one, and that was not allowed.
        """
        if not self.allow_other_rule and (self.rule in names() or Path(self.rule).exists()):
            now = fingerprint(stateir.load(self.rule))
            if now != self.rule_hash:
                raise RuleChanged(
                    f"the model was saved with {self.rule} of hash {self.rule_hash}, whose hash is now {now}; "
                    "allow_other_rule=True goes on with the text that was saved"
                )
        return stateir.parse(self.rule_text, filename="config:rule_text")


@dataclass
class CausalOutput(ModelOutput):  # type: ignore[misc]
    """loss: mean cross entropy where labels are given; logits [B, T, tokens]; carried: what the next token needs."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    carried: Any = None


class StateirForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """`LanguageModel` for transformers: `generate` carries the state from token to token, for any rule and pattern."""

    config_class = StateirConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _is_stateful = True

    def __init__(self, config: StateirConfig) -> None:
        super().__init__(config)
        self.model = LanguageModel(config.shape, config.checked_rule())
        self.post_init()

    def _init_weights(self, module: Any) -> None:
        """The language model starts itself."""

    @classmethod
    def _supports_default_dynamic_cache(cls, *_: Any) -> bool:
        return False

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embed

    def get_output_embeddings(self) -> None:
        """None: the head is the embedding."""
        return None

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None) -> None:
        self.model.checkpointing = True

    def gradient_checkpointing_disable(self) -> None:
        self.model.checkpointing = False

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, carried: list[LayerCache] | None = None,
        use_cache: bool = False, attention_mask: Tensor | None = None, return_dict: bool | None = None, **_: Any,
    ) -> CausalOutput:  # fmt: skip
        """input_ids [B, T]; labels are shifted here, as transformers' are; `carried` is that of the tokens before.

        Raises:
            ValueError: for an attention_mask that masks anything: a recurrence has read every token that it was given.
        """
        if attention_mask is not None and not bool(attention_mask.all()):
            raise ValueError("attention_mask: expected ones alone, got padding; generate texts of one length together")
        token = carried is not None and input_ids.shape[1] == 1
        logits, after = self.model(input_ids, cache=carried, return_cache=use_cache, token=token and use_cache)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return CausalOutput(loss=loss, logits=logits, carried=after)

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, carried: list[LayerCache] | None = None, attention_mask: Tensor | None = None,
        use_cache: bool = True, **_: Any,
    ) -> dict[str, Any]:  # fmt: skip
        ids = input_ids if carried is None else input_ids[:, -1:]
        return {"input_ids": ids, "carried": carried, "use_cache": use_cache, "attention_mask": attention_mask}

    def _update_model_kwargs_for_generation(
        self, outputs: CausalOutput, model_kwargs: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        return {**super()._update_model_kwargs_for_generation(outputs, model_kwargs, **kwargs), "carried": outputs.carried}


AutoConfig.register("stateir", StateirConfig)
AutoModelForCausalLM.register(StateirConfig, StateirForCausalLM)
