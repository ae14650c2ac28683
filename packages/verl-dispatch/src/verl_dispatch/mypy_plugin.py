"""A mypy plugin that checks `group.method(...)` by the worker's class and the method's dispatch mode.

Switch it on with `plugins = ["verl_dispatch.mypy_plugin"]` in mypy's configuration (extra `mypy`). What a
mode takes and gives is said in `verl_dispatch.modes`; the plugin fills the placeholders there from the
method's signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from functools import partial
from typing import Final, cast

from mypy.checker import TypeChecker
from mypy.errorcodes import ATTR_DEFINED
from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import ARG_POS, TypeInfo
from mypy.plugin import AttributeContext, MethodSigContext, Plugin
from mypy.subtypes import is_subtype
from mypy.type_visitor import TypeTranslator
from mypy.typeops import bind_self, make_simplified_union
from mypy.types import (
    AnyType,
    CallableType,
    FunctionLike,
    Instance,
    LiteralType,
    Overloaded,
    Parameters,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypeOfAny,
    TypeVarType,
    UninhabitedType,
    UnionType,
    get_proper_type,
)

GROUPS: Final = {"verl_dispatch.groups.group.WorkerGroup", "verl_dispatch.groups.group.MethodNames"}
DECORATOR: Final = "verl_dispatch.methods.static.Decorator"
REGISTERED: Final = "verl_dispatch.methods.static.Registered"
MODE: Final = "verl_dispatch.modes.Mode"
ARG: Final = "verl_dispatch.modes.Arg"
RES: Final = "verl_dispatch.modes.Res"
REF: Final = "verl_dispatch.modes.Ref"
BATCH: Final = "verl_dispatch.modes.Batch"


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return GroupPlugin


class GroupPlugin(Plugin):
    """Hooks the attributes that a group has through `__getattr__`, its workers' methods, and `@register`."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The hook for `fullname`, the class that defines `__getattr__` and the attribute's name."""
        owner, _, name = fullname.rpartition(".")
        return partial(attribute_of_group, name) if owner in GROUPS else None

    def get_method_signature_hook(self, fullname: str) -> Callable[[MethodSigContext], FunctionLike] | None:
        """The hook for applying what `register(...)` returned."""
        return decorator_signature if fullname == f"{DECORATOR}.__call__" else None


def decorator_signature(ctx: MethodSigContext) -> CallableType:
    """Accepts methods with `**kwargs`, of which mypy says that a caller could name `self` among them."""
    signature = ctx.default_signature
    function = get_proper_type(ctx.api.get_expression_type(ctx.args[0][0])) if ctx.args[0] else None
    result = get_proper_type(signature.ret_type)
    if not (isinstance(function, CallableType) and isinstance(result, Instance)):
        return signature
    if not (function.is_kw_arg and function.arg_kinds[0] == ARG_POS):
        return signature
    bound = bind_self(function)
    solved = result.copy_modified(args=[function.arg_types[0], bound, *result.args[2:]])
    return signature.copy_modified(arg_types=[function], ret_type=solved, variables=[])


def attribute_of_group(name: str, ctx: AttributeContext) -> Type:
    """The type of `group.name`, for each of the groups that the expression may be."""
    groups = [group for group in _instances(ctx.type) if group.type.get(name) is None]
    if ctx.is_lvalue or not groups:
        return ctx.default_attr_type
    return make_simplified_union([_worker_method(name, group, ctx) for group in groups])


def _instances(typ: Type) -> Iterator[Instance]:
    """The groups in a type: through unions, and through type variables to their bounds."""
    proper = get_proper_type(typ)
    if isinstance(proper, UnionType):
        for item in proper.items:
            yield from _instances(item)
    elif isinstance(proper, TypeVarType):
        yield from _instances(proper.upper_bound)
    elif isinstance(proper, Instance) and any(base.fullname in GROUPS for base in proper.type.mro):
        yield proper


def _worker_method(name: str, group: Instance, ctx: AttributeContext) -> Type:
    worker, ref = _arguments_as(group, GROUPS)
    if isinstance(worker, TypeVarType):
        worker = get_proper_type(worker.upper_bound)
    if not isinstance(worker, Instance):
        return ctx.default_attr_type
    owner = next((base for base in worker.type.mro if name in base.names), None)
    _depend_on(owner or worker.type, name, ctx)
    if owner is None and worker.type.fallback_to_any:
        return ctx.default_attr_type
    if owner is None:
        return _unknown(name, group, worker, ctx)
    declared = get_proper_type(owner.names[name].type)
    if declared is None:
        _checker(ctx).handle_cannot_determine_type(name, ctx.context)
        return AnyType(TypeOfAny.from_error)
    if isinstance(declared, AnyType):
        return ctx.default_attr_type
    declared = get_proper_type(expand_type_by_instance(declared, map_instance_to_supertype(worker, owner)))
    if not _is_registered(declared):
        return _not_registered(name, worker, ctx)
    return _on_group(name, group, cast(Instance, declared), ref, ctx)


def _on_group(name: str, group: Instance, method: Instance, ref: ProperType, ctx: AttributeContext) -> Type:
    """The registered method as the group has it, or `ctx.default_attr_type` where its types are not known."""
    _, signature, mode, blocking = map(get_proper_type, method.args)
    shape, forms = _method_object(group), _forms(mode)
    if not (forms and isinstance(signature, CallableType) and isinstance(shape, Instance)):
        return ctx.default_attr_type
    if isinstance(_arguments_as(forms[0], {MODE})[0], UninhabitedType):
        return _failed(f'"{name}" cannot be called on a group, only on a worker', ctx)
    name = f"{name} of {group.type.name}"
    bound = [_bound(name, form, signature, ref, blocking, shape) for form in forms]
    if len(bound) == 1:
        return bound[0]
    return Overloaded([form.copy_modified(fallback=bound[0].fallback) for form in bound[1:]])


def _method_object(group: Instance) -> Type | None:
    """The type of a method bound to a group, which `WorkerGroup._bound` and `MethodNames` return."""
    symbol = group.type.get("_bound") or group.type.get("__getattr__")
    returns = get_proper_type(symbol.type) if symbol else None
    return get_proper_type(returns.ret_type) if isinstance(returns, CallableType) else None


def _forms(mode: ProperType) -> list[Instance]:
    """The mode, then the forms that it lists; nothing for a mode that is not typed."""
    if not (isinstance(mode, Instance) and mode.type.has_base(MODE)):
        return []
    symbol = mode.type.get("forms")
    listed = get_proper_type(symbol.type) if symbol else None
    forms = map(get_proper_type, listed.items if isinstance(listed, TupleType) else [])
    return [mode, *(form for form in forms if isinstance(form, Instance))]


def _bound(
    name: str, mode: Instance, signature: CallableType, ref: ProperType, blocking: ProperType, shape: Instance
) -> CallableType:
    """A callable with adapted parameters, whose other attributes are those of the group's method object."""
    takes, gives, gives_later = _arguments_as(mode, {MODE})
    signature = signature.with_unpacked_kwargs().with_normalized_var_args()
    answer = _awaited(signature.ret_type)
    arguments = [
        form.accept(_Filled(argument, answer, ref))
        for form, argument in zip(
            _per_parameter(takes, len(signature.arg_types)), signature.arg_types, strict=True
        )
    ]
    parameters = Parameters(
        arguments,
        signature.arg_kinds,
        signature.arg_names,
        variables=signature.variables,
        is_ellipsis_args=signature.is_ellipsis_args,
    )
    now, later = (
        typ.accept(_Filled(AnyType(TypeOfAny.special_form), answer, ref)) for typ in (gives, gives_later)
    )
    result: Type = AnyType(TypeOfAny.explicit)
    if isinstance(blocking, LiteralType):
        result = now if blocking.value else later
    fallback = shape.copy_modified(args=[parameters, answer, now, result])
    return signature.copy_modified(
        arg_types=arguments, ret_type=result, fallback=fallback, name=name, definition=None
    )


def _per_parameter(takes: ProperType, count: int) -> list[Type]:
    if not isinstance(takes, TupleType):
        return [takes] * count
    return [takes.items[min(place, len(takes.items) - 1)] for place in range(count)]


def _awaited(answer: Type) -> Type:
    proper = get_proper_type(answer)
    if isinstance(proper, Instance) and proper.type.fullname in ("typing.Coroutine", "types.CoroutineType"):
        return proper.args[2]
    return answer


class _Filled(TypeTranslator):
    """Puts types in place of a mode's placeholders."""

    def __init__(self, argument: Type, answer: Type, ref: ProperType) -> None:
        super().__init__()
        self.argument, self.answer, self.ref = argument, answer, ref

    def visit_instance(self, t: Instance, /) -> Type:
        if t.type.fullname == ARG:
            return self.argument
        if t.type.fullname == RES:
            return self.answer
        args = [arg.accept(self) for arg in t.args]
        if t.type.fullname == BATCH:
            return _batches_of(args[0], t.type)
        if t.type.fullname == REF:
            return self.ref.copy_modified(args=args) if isinstance(self.ref, Instance) else self.ref
        if any(isinstance(get_proper_type(arg), UninhabitedType) for arg in args):
            return UninhabitedType()
        return t.copy_modified(args=args)

    def visit_union_type(self, t: UnionType, /) -> Type:
        return make_simplified_union([item.accept(self) for item in t.items], t.line, t.column)

    def visit_type_alias_type(self, t: TypeAliasType, /) -> Type:
        return get_proper_type(t).accept(self)


def _batches_of(typ: Type, placeholder: TypeInfo) -> Type:
    kinds = placeholder.names["kinds"].type
    proper = get_proper_type(typ)
    items = proper.items if isinstance(proper, UnionType) else [proper]
    return make_simplified_union(
        [item for item in items if kinds and (is_subtype(item, kinds) or is_subtype(kinds, item))]
    )


def _arguments_as(typ: Instance, bases: set[str] | frozenset[str]) -> list[ProperType]:
    base = next(base for base in typ.type.mro if base.fullname in bases)
    return [get_proper_type(arg) for arg in map_instance_to_supertype(typ, base).args]


# --- messages and dependencies ----------------------------------------------------------------------------


def _unknown(name: str, group: Instance, worker: Instance, ctx: AttributeContext) -> Type:
    known = [
        known
        for base in worker.type.mro
        for known, symbol in base.names.items()
        if _is_registered(symbol.type)
    ]
    maybe = "".join(f'; maybe "{close}"?' for close in get_close_matches(name, known, n=1))
    return _failed(f'"{group.type.name}[{worker.type.name}]" has no method "{name}"{maybe}', ctx)


def _not_registered(name: str, worker: Instance, ctx: AttributeContext) -> Type:
    where = f'"{name}" of "{worker.type.name}"'
    return _failed(f"{where} is not registered: a group has only methods with @register", ctx)


def _failed(message: str, ctx: AttributeContext) -> Type:
    ctx.api.fail(message, ctx.context, code=ATTR_DEFINED)
    return AnyType(TypeOfAny.from_error)


def _is_registered(typ: Type | None) -> bool:
    proper = get_proper_type(typ)
    return isinstance(proper, Instance) and proper.type.fullname == REGISTERED


def _depend_on(owner: TypeInfo, name: str, ctx: AttributeContext) -> None:
    """Has mypy's daemon check this place again when the method, or the class, changes."""
    checker = _checker(ctx)
    target = checker.tscope.current_target()
    for trigger in (f"<{owner.fullname}.{name}>", f"<{owner.fullname}>"):
        checker.tree.plugin_deps.setdefault(trigger, set()).add(target)


def _checker(ctx: AttributeContext) -> TypeChecker:
    return cast(TypeChecker, ctx.api)
