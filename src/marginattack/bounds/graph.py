"""A model as a graph of affine and non-linear operations, traced by torch.export; unknown ones raise InputError."""

import io
import logging
import warnings
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from marginattack.bounds.operations import Affine, Shape, require_precision
from marginattack.bounds.relaxations import NonLinear
from marginattack.bounds.translation import Call, Untranslatable, find_rule
from marginattack.core.flags import consistent_tf32
from marginattack.errors import InputError, one_line

SAMPLES = 3  # per traced batch, different from the length of most axes
CLOSE = 1e-3  # the largest difference between the graph's logits and the model's, relative to the largest logit


@dataclass(frozen=True, eq=False)
class Node:
    """One operation: its rule, the numbers of its inputs, and the shape of its output for one sample."""

    rule: Affine | NonLinear | None  # None: the input of the network
    inputs: tuple[int, ...]
    shape: Shape


@dataclass(frozen=True, eq=False)
class Graph:
    """A network in topological order: node 0 is its input, the last one its logits."""

    nodes: tuple[Node, ...]
    model_dtype: torch.dtype  # the precision in which the model computes

    def to(self, dtype: torch.dtype) -> "Graph":
        """The graph with its weights in another precision, not below the model's."""
        cast = (
            replace(node, rule=node.rule.to(dtype)) if isinstance(node.rule, Affine) else node for node in self.nodes
        )
        return replace(self, nodes=tuple(cast))

    def value(self, images: Tensor) -> Tensor:
        """The logits, evaluated node by node."""
        values = [images]
        for node in self.nodes[1:]:
            assert node.rule is not None
            values.append(node.rule.value(*(values[i] for i in node.inputs)))
        return values[-1]


def trace(model: nn.Module, images: Tensor) -> Graph:
    """The graph of a frozen model in eval mode, checked against the model on these images.

    Raises:
        InputError: The model cannot be traced, has an operation that bounds do not cover, or is not computed in
            float32 or float64.
    """
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), images.dtype)
    require_precision(dtype)
    images = images.to(dtype)
    example = images[torch.arange(SAMPLES, device=images.device) % len(images)].clone()
    silenced = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch.export logs and prints what it also raises, over many lines
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings(), torch.no_grad(), consistent_tf32():
            warnings.simplefilter("ignore")
            program = torch.export.export(model, (example,), strict=False)
    except Exception as error:
        hint = "bounds need a model without control flow that depends on the input"
        raise InputError(f"torch.export cannot trace the model ({one_line(error)}): {hint}") from error
    finally:
        logging.disable(silenced)
    graph = Graph(tuple(_Translator(program, dtype).nodes()), dtype)
    with torch.no_grad():
        expected, found = model(example.clone()), graph.value(example)  # a model may edit its input
    if not torch.allclose(found, expected, rtol=CLOSE, atol=CLOSE * float(expected.abs().max())):
        change = float((found - expected).abs().max())
        hint = "bounds would be wrong; simplify the model"
        raise InputError(f"the traced graph differs from the model by {change:.3g} in a logit: {hint}")
    return graph


class _Translator:
    """From a program of ATen operations to nodes."""

    def __init__(self, program: Any, dtype: torch.dtype) -> None:
        self.graph, self.dtype = program.graph, dtype
        signature = program.graph_signature
        held = {**program.constants, **program.state_dict}
        lifted = (signature.inputs_to_parameters, signature.inputs_to_buffers)
        names = {k: v for each in lifted for k, v in each.items()} | signature.inputs_to_lifted_tensor_constants
        self.constants: dict[fx.Node, Any] = {
            node: held[names[node.name]] for node in self.graph.nodes if node.op == "placeholder" and node.name in names
        }
        self.user_inputs = set(signature.user_inputs)
        self.outputs = signature.user_outputs
        self.order = {node: place for place, node in enumerate(self.graph.nodes)}
        self.owner: dict[fx.Node, fx.Node] = {}  # whose memory a tensor may share
        self.now: dict[fx.Node, fx.Node] = {}  # the tensor with the same values
        self.number: dict[fx.Node, int] = {}

    def nodes(self) -> list[Node]:
        """All nodes that the logits depend on."""
        found: list[Node] = []
        for node in self.graph.nodes:
            if node.op == "placeholder" and node.name in self.user_inputs:
                if found:
                    raise InputError("model takes several inputs: bounds need exactly one")
                self.number[node] = 0
                found.append(Node(None, (), tuple(node.meta["val"].shape[1:])))
            elif node.op == "call_function":
                made = self._translate(node)
                if made is not None:
                    self.number[node] = len(found)
                    found.append(made)
        return self._reached(found)

    def _translate(self, node: fx.Node) -> Node | None:
        """The node of one call; None if it computes a constant or its output is not used."""
        args = fx.map_arg((node.args, node.kwargs), lambda each: self.now.get(each, each))
        inputs: list[fx.Node] = []
        fx.map_arg(args, lambda each: inputs.append(each) if each in self.number else None)
        name = str(node.target).removeprefix("aten.")
        if not inputs:
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
                raise InputError(f"model draws random numbers ({name.split('.')[0]}): bounds need a deterministic one")
            if not str(name).startswith("_assert"):
                known = fx.map_arg(args, lambda each: self.constants[each])
                with torch.no_grad():
                    self.constants[node] = node.target(*known[0], **known[1])  # type: ignore[operator]
            return None
        in_place = name.split(".")[0].endswith("_")
        if _may_alias(node) or in_place:
            self._share_memory(node, name, in_place)
        if not (node.users or in_place) or node.meta.get("val") is None:
            return None
        values = [_first(each.meta["val"]) for each in (node, *inputs)]
        if values[0].dtype != self.dtype:
            raise InputError(f"bounds do not cover {name.split('.')[0]} ({node.name}) to {values[0].dtype}")
        (positional, keyword) = fx.map_arg(args, lambda each: self.constants.get(each, each))
        try:
            rule = find_rule(Call(node.target, positional, keyword, inputs, values))
        except Untranslatable as error:
            raise InputError(f"bounds do not cover {name.split('.')[0]} ({node.name}){error}") from None
        if rule is None:  # the first of several outputs, or the same values again
            self.now[node] = inputs[0]
            return None
        return Node(rule, tuple(self.number[each] for each in inputs), tuple(values[0].shape[1:]))

    def _share_memory(self, node: fx.Node, name: str, in_place: bool) -> None:
        """Record whose memory the output may share; after an in-place change, only the output may read it.

        torch.export rebinds the changed tensor to the output, but not other tensors that share its memory.
        """
        target = node.args[0]
        if not isinstance(target, fx.Node):
            return  # a list of tensors: no rule covers that
        owner = self.owner.get(target, target)
        sharing = [owner, *(each for each, of in self.owner.items() if of is owner)]
        self.owner[node] = owner
        if in_place and any(self.order[user] > self.order[node] for each in sharing for user in each.users):
            raise InputError(f"bounds do not cover {name.split('.')[0]} ({node.name}) in place on a shared tensor")

    def _reached(self, nodes: list[Node]) -> list[Node]:
        """The nodes that the output depends on, in order."""
        if len(self.outputs) != 1:
            raise InputError(
                f"model returns {len(self.outputs)} tensors: wrap it so that forward returns the logits alone"
            )
        last = next(node for node in self.graph.nodes if node.name == self.outputs[0])
        last = self.now.get(last, last)
        if last not in self.number:
            raise InputError("the model's output does not depend on its input: check its forward")
        needed, stack = {0}, [self.number[last]]
        while stack:
            current = stack.pop()
            if current not in needed:
                needed.add(current)
                stack.extend(nodes[current].inputs)
        kept = sorted(needed)
        place = {old: new for new, old in enumerate(kept)}
        return [replace(nodes[old], inputs=tuple(place[i] for i in nodes[old].inputs)) for old in kept]


def _first(value: Any) -> Any:
    """The first of several outputs."""
    return value[0] if isinstance(value, list | tuple) else value


def _may_alias(node: fx.Node) -> bool:
    """Whether the output may share memory with the first input."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return False
    return "dropout" in schema.name or any(each.alias_info is not None for each in schema.returns)
