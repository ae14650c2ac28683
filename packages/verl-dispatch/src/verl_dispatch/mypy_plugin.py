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
from mypy.erasetype import erase_typevars
from mypy.errorcodes import ATTR_DEFINED
from mypy.expandtype import expand_type_by_instance
from mypy.maptype import map_instance_to_supertype
from mypy.nodes import TypeInfo
from mypy.plugin import AttributeContext, MethodContext, Plugin
from mypy.type_visitor import TypeTranslator
from mypy.typeops import get_all_type_vars, make_simplified_union
from mypy.types import (
    AnyType,
    CallableType,
    Instance,
    LiteralType,
    Overloaded,
    Parameters,
    ParamSpecType,
    ProperType,
    TupleType,
    Type,
    TypeAliasType,
    TypeOfAny,
    TypeType,
    TypeVarType,
    UninhabitedType,
    UnionType,
    UnpackType,
    get_proper_type,
)

GROUPS: Final = {"verl_dispatch.groups.group.WorkerGroup", "verl_dispatch.groups.group.MethodNames"}
REGISTERED: Final = "verl_dispatch.methods.static.Registered"
METHOD: Final = "verl_dispatch.methods.static.Method"
ROLES: Final = "verl_dispatch.workers.roles.ColocatedWorker"
MODE: Final = "verl_dispatch.modes.Mode"
ARG: Final = "verl_dispatch.modes.Arg"
RES: Final = "verl_dispatch.modes.Res"
REF: Final = "verl_dispatch.modes.Ref"
PER: Final = "verl_dispatch.modes.Per"
FUTURE: Final = "verl_protocol.futures.future.DataProtoFuture"
ROWS: Final = {"verl_dispatch.modes.Batch", "verl_dispatch.modes.TensorBatch", FUTURE}


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy calls."""
    return GroupPlugin


class GroupPlugin(Plugin):
    """Hooks the attributes that a group has through `__getattr__`, and `WorkerClass.method`."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """The hook for `fullname`, the class that defines `__getattr__` and the attribute's name."""
        owner, _, name = fullname.rpartition(".")
        return partial(attribute_of_group, name) if owner in GROUPS else None

    def get_method_hook(self, fullname: str) -> Callable[[MethodContext], Type] | None:
        """The hook for reading a registered method as an attribute."""
        return attribute_of_worker if fullname == f"{REGISTERED}.__get__" else None


def attribute_of_group(name: str, ctx: AttributeContext) -> Type:
    """The type of `group.name`; a fault of this plugin costs one error, not the run."""
    try:
        return _attribute_of_group(name, ctx)
    except Exception as error:
        return _failed(f'"{name}" is beyond the plugin of verl-dispatch, please report it: {error!r}', ctx)


def attribute_of_worker(ctx: MethodContext) -> Type:
    """The type of `WorkerClass.name`; with a fault of this plugin what it would be without the plugin."""
    try:
        return _attribute_of_worker(ctx)
    except Exception:
        return ctx.default_return_type


def _attribute_of_group(name: str, ctx: AttributeContext) -> Type:
    """For each of the groups that the expression may be."""
    groups = [group for group in _instances(ctx.type) if group.type.get(name) is None]
    if ctx.is_lvalue or not groups:
        return ctx.default_attr_type
    methods = [
        _worker_method(name, group, worker, ref, ctx)
        for group in groups
        for given, ref in [_arguments_as(group, GROUPS)]
        for worker in _items(given.upper_bound if isinstance(given, TypeVarType) else given)
    ]
    return make_simplified_union(methods)


def _attribute_of_worker(ctx: MethodContext) -> Type:
    """As without the plugin, but for parameters of any number and kind."""
    method, default = ctx.type, get_proper_type(ctx.default_return_type)
    owner = get_proper_type(ctx.arg_types[1][0])
    if not (isinstance(method, Instance) and isinstance(default, Instance) and isinstance(owner, TypeType)):
        return ctx.default_return_type
    if default.type.fullname != METHOD:
        return ctx.default_return_type
    # A type has no variables of its own: those of the method, and of a `Base` that is generic, are Any here.
    variables = list(owner.item.type.defn.type_vars) if isinstance(owner.item, Instance) else []
    signature = get_proper_type(method.args[1])
    if isinstance(signature, CallableType):
        variables += signature.variables
        signature = signature.copy_modified(variables=[])
    method = method.copy_modified(args=[method.args[0], signature, *method.args[2:]])
    erased = erase_typevars(method, {variable.id for variable in variables})
    worker, signature, mode, blocking = map(get_proper_type, cast(Instance, erased).args)
    forms = _forms(mode)
    if not (forms and isinstance(signature, CallableType)):
        return default.copy_modified(args=[worker, *default.args[1:]])
    call = _GroupCall.of(forms, signature, None)
    return default.copy_modified(
        args=[worker, call.parameters, call.answer, call.gives, call.gives_later, blocking]
    )


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


def _worker_method(
    name: str, group: Instance, worker: ProperType, ref: ProperType, ctx: AttributeContext
) -> Type:
    if not isinstance(worker, Instance):
        return ctx.default_attr_type
    owner = next((base for base in worker.type.mro if name in base.names), None)
    _depend_on(owner or worker.type, name, ctx)
    if owner is None and (worker.type.fallback_to_any or worker.type.has_base(ROLES)):
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
    if not _is(declared, REGISTERED):
        problem = "is not registered: a group has only methods with @register"
        return _failed(f'"{name}" of "{worker.type.name}" {problem}', ctx)
    return _on_group(name, group, cast(Instance, declared), ref, ctx)


def _on_group(name: str, group: Instance, method: Instance, ref: ProperType, ctx: AttributeContext) -> Type:
    """The registered method as the group has it, or `ctx.default_attr_type` where its types are not known."""
    _, signature, mode, blocking = map(get_proper_type, method.args)
    shape, forms = _method_object(group), _forms(mode)
    if not (forms and isinstance(signature, CallableType) and isinstance(shape, Instance)):
        return ctx.default_attr_type
    if isinstance(_arguments_as(forms[0], {MODE})[0], UninhabitedType):
        return _failed(f'"{name}" cannot be called on a group, only on a worker', ctx)
    whole = _GroupCall.of(forms, signature, ref)
    arguments = [whole.parameters, whole.answer, whole.gives, whole.result(blocking)]
    # A callable whose other attributes are those of the group's method object.
    method_object = shape.copy_modified(args=arguments)
    told = f"{name} of {group.type.name}"
    bound: list[CallableType] = [
        call.signature.copy_modified(
            ret_type=call.result(blocking), fallback=method_object, name=told, definition=None
        )
        for call in (_GroupCall(form, signature, ref) for form in forms[1:] or forms)
    ]
    return bound[0] if len(bound) == 1 else Overloaded(bound)


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


class _GroupCall:
    """What a group takes and gives for a method of this signature, in one form of its mode."""

    def __init__(self, mode: Instance, signature: CallableType, ref: ProperType | None) -> None:
        takes, gives, gives_later = _arguments_as(mode, {MODE})
        signature = signature.with_unpacked_kwargs().with_normalized_var_args()
        forms = _per_parameter(takes, len(signature.arg_types))
        arguments = [
            _taken(form, argument, ref) for form, argument in zip(forms, signature.arg_types, strict=True)
        ]
        self.signature = signature.copy_modified(arg_types=arguments)
        signature = _without_lost(signature, arguments)
        self.answer = _awaited(signature.ret_type)
        self.gives: Type
        self.gives_later: Type
        self.gives, self.gives_later = (
            typ.accept(_Filled(AnyType(TypeOfAny.special_form), self.answer, ref))
            for typ in (gives, gives_later)
        )

    @classmethod
    def of(cls, forms: list[Instance], signature: CallableType, ref: ProperType | None) -> _GroupCall:
        """In all forms of a mode: which of them it is, and so what is given, is not known."""
        call = cls(forms[0], signature, ref)
        if forms[1:]:
            call.gives = call.gives_later = AnyType(TypeOfAny.explicit)
        return call

    @property
    def parameters(self) -> Parameters:
        return Parameters(
            self.signature.arg_types,
            self.signature.arg_kinds,
            self.signature.arg_names,
            variables=self.signature.variables,
            is_ellipsis_args=self.signature.is_ellipsis_args,
        )

    def result(self, blocking: ProperType) -> Type:
        if not isinstance(blocking, LiteralType):
            return AnyType(TypeOfAny.explicit)
        return self.gives if blocking.value else self.gives_later


def _taken(form: Type, argument: Type, ref: ProperType | None) -> Type:
    """What is taken for a parameter; anything for `P.args` and `*Ts`, which have no forms but their own."""
    if isinstance(argument, ParamSpecType | UnpackType):
        if any(_is(each, ARG) for each in _items(form)):
            return argument
        argument = AnyType(TypeOfAny.special_form)
    if isinstance(get_proper_type(argument), UninhabitedType):
        argument = AnyType(TypeOfAny.special_form)  # what mypy makes of `Self`
    # Of a group whose futures are not known, none are taken: Any would be, whatever the parameter.
    return form.accept(_Filled(argument, argument, ref if isinstance(ref, Instance) else UninhabitedType()))


def _without_lost(signature: CallableType, arguments: list[Type]) -> CallableType:
    """The signature with Any for each `*Ts` that the arguments no longer show."""
    lost = {
        variable.id
        for given, taken in zip(signature.arg_types, arguments, strict=True)
        if isinstance(given, UnpackType) and taken is not given
        for variable in get_all_type_vars(given)
    }
    return cast(CallableType, erase_typevars(signature, lost)) if lost else signature


def _items(typ: Type) -> list[ProperType]:
    proper = get_proper_type(typ)
    return list(map(get_proper_type, proper.items)) if isinstance(proper, UnionType) else [proper]


def _per_parameter(takes: ProperType, count: int) -> list[Type]:
    if isinstance(takes, Instance) and takes.type.has_base(PER):
        takes = _arguments_as(takes, {PER})[0]
    if not isinstance(takes, TupleType):
        return [takes] * count
    items = takes.items or [UninhabitedType()]
    return [items[min(place, len(items) - 1)] for place in range(count)]


def _awaited(answer: Type) -> Type:
    proper = get_proper_type(answer)
    if isinstance(proper, Instance) and proper.type.fullname in ("typing.Coroutine", "types.CoroutineType"):
        return proper.args[2]
    return answer


class _Filled(TypeTranslator):
    """Puts types in place of a mode's placeholders."""

    def __init__(self, argument: Type, answer: Type, ref: ProperType | None) -> None:
        super().__init__()
        self.argument, self.answer, self.ref = argument, answer, ref

    def visit_instance(self, t: Instance, /) -> Type:
        if _is(t, ARG):
            return self.argument
        if _is(t, RES):
            return self.answer
        if t.type.fullname in ROWS and any(_is(arg, ARG) for arg in t.args):
            return make_simplified_union([_rows(t, item) for item in _items(self.argument)])
        args = [arg.accept(self) for arg in t.args]
        if _is(t, REF) and self.ref:
            return self.ref.copy_modified(args=args) if isinstance(self.ref, Instance) else self.ref
        return t.copy_modified(args=args)

    def visit_union_type(self, t: UnionType, /) -> Type:
        return make_simplified_union([item.accept(self) for item in t.items], t.line, t.column)

    def visit_type_alias_type(self, t: TypeAliasType, /) -> Type:
        return get_proper_type(t).accept(self)


def _rows(form: Instance, typ: ProperType) -> Type:
    """A form of batches for one type: only for those that may be batches, which are said as they are."""
    if isinstance(typ, AnyType | TypeVarType):
        return form.copy_modified(args=[typ])
    if not isinstance(typ, Instance):
        return UninhabitedType()
    anything = typ.type.is_protocol or typ.type.fullname == "builtins.object"
    if anything or (_is(form, FUTURE) and _is_batch(typ)):
        return form.copy_modified(args=[typ])
    return typ if _is_batch(typ) else UninhabitedType()


def _is_batch(typ: Instance) -> bool:
    return typ.type.fallback_to_any or any(map(typ.type.get, ("concat", "batch_size")))


def _is(typ: Type | None, name: str) -> bool:
    proper = get_proper_type(typ)
    return isinstance(proper, Instance) and proper.type.fullname == name


def _arguments_as(typ: Instance, bases: set[str] | frozenset[str]) -> list[ProperType]:
    base = next(base for base in typ.type.mro if base.fullname in bases)
    return [get_proper_type(arg) for arg in map_instance_to_supertype(typ, base).args]


# --- messages and dependencies ----------------------------------------------------------------------------


def _unknown(name: str, group: Instance, worker: Instance, ctx: AttributeContext) -> Type:
    known = [
        known
        for base in worker.type.mro
        for known, symbol in base.names.items()
        if _is(symbol.type, REGISTERED)
    ]
    maybe = "".join(f'; maybe "{close}"?' for close in get_close_matches(name, known, n=1))
    return _failed(f'"{group.type.name}[{worker.type.name}]" has no method "{name}"{maybe}', ctx)


def _failed(message: str, ctx: AttributeContext) -> Type:
    ctx.api.fail(message, ctx.context, code=ATTR_DEFINED)
    return AnyType(TypeOfAny.from_error)


def _depend_on(owner: TypeInfo, name: str, ctx: AttributeContext) -> None:
    """Has mypy's daemon check this place again when the method, or the class, changes."""
    checker = _checker(ctx)
    target = checker.tscope.current_target()
    for trigger in (f"<{owner.fullname}.{name}>", f"<{owner.fullname}>"):
        checker.tree.plugin_deps.setdefault(trigger, set()).add(target)


def _checker(ctx: AttributeContext) -> TypeChecker:
    return cast(TypeChecker, ctx.api)
