"""PTX on registers: rounding, conversions, shuffles, fast functions, and how many registers a warpgroup has."""

from llvmlite import ir
from numba.core import cgutils, types
from numba.cuda.extending import intrinsic

from numbacaps.device.instructions.ptx.inline import F32, I32, I64, VOID, asm, library, with_number
from numbacaps.device.target import cuda
from numbacaps.device.unrolled import MARK

# A warpgroup takes registers of the block's pool, or gives them back: each of its threads then has N.
more_registers = with_number("setmaxnreg.inc.sync.aligned.u32 {};")

fewer_registers = with_number("setmaxnreg.dec.sync.aligned.u32 {};")


@intrinsic
def permuted_bytes(typing_context, one, other, selector):
    """Four of two words' 8 bytes, each named by 4 bits of ``selector``, the lowest first."""

    def codegen(context, builder, signature, arguments):
        words = [builder.bitcast(value, I32) for value in arguments[:2]]
        words.append(builder.trunc(arguments[2], I32))
        text = "prmt.b32 $0, $1, $2, $3;"
        return builder.bitcast(asm(builder, I32, words, text, "=r,r,r,r", False), F32)

    return types.float32(types.float32, types.float32, types.int64), codegen


@intrinsic
def float_of(typing_context, bits):
    """The float32 that some bits are: a specialization constant is an integer."""

    def codegen(context, builder, signature, arguments):
        return builder.bitcast(builder.trunc(arguments[0], I32), F32)

    return types.float32(types.int64), codegen


@intrinsic
def unforeseen(typing_context, value):
    """``value``, of which LLVM does not know that it is: a loop that counts so it does not unroll."""

    def codegen(context, builder, signature, arguments):
        return asm(builder, I32, arguments, "mov.b32 $0, $1;", "=r,r")

    return types.int32(types.int32), codegen


@intrinsic
def unroll_loops(typing_context):
    """All loops of the device function that calls it are unrolled (:mod:`numbacaps.device.unrolled`)."""

    def codegen(context, builder, signature, arguments):
        mark = cgutils.get_or_insert_function(builder.module, ir.FunctionType(VOID, []), MARK)
        builder.call(mark, [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def pinned(typing_context, value):
    """``value``, an int64, in registers; all lanes of a warp take part.

    The assembler works some values out anew wherever they are used, because that saves registers: in a loop, every time. What
    a shuffle gives, even one's own, it keeps.
    """

    def codegen(context, builder, signature, arguments):
        own = " ".join(
            f"shfl.sync.up.b32 {half}, {half}, 0, 0, 0xffffffff;" for half in ("low", "high")
        )
        text = f"{{ .reg .b32 low, high; mov.b64 {{low, high}}, $1; {own} mov.b64 $0, {{low, high}}; }}"
        return asm(builder, I64, arguments, text, "=l,l")

    return types.int64(types.int64), codegen


@cuda.jit(device=True, inline="always")
def shuffle(value, lane):
    """What a lane of the warp gives as ``value``; all of them take part."""
    return cuda.shfl_sync(0xFFFFFFFF, value, lane)


# exp(r) - 1 is r + r^2 q(r), with these coefficients of q from r^4 down: for |r| <= log(2) / 2 the relative
# error is 1.4e-8 (least squares, weights raised where it was largest).
_EXPM1 = (0x3AB6CCDD, 0x3C091440, 0x3D2AAA43, 0x3E2AAA57, 0x3F000000)

_EXPM1_TEXT = (
    "{ .reg .f32 x, k, r, q, s; "
    "max.f32 x, $1, 0fC2AE0000; "  # -87: below it the result is -1
    "mul.f32 k, x, 0f3FB8AA3B; cvt.rni.f32.f32 k, k; "  # x is k log(2) + r
    "fma.rn.f32 r, k, 0fBF317218, x; fma.rn.f32 r, k, 0f3102E308, r; "
    f"mov.f32 q, 0f{_EXPM1[0]:08X}; "
    + "".join(f"fma.rn.f32 q, q, r, 0f{number:08X}; " for number in _EXPM1[1:])
    + "mul.f32 q, q, r; fma.rn.f32 q, q, r, r; "
    "ex2.approx.ftz.f32 s, k; add.f32 x, s, 0fBF800000; fma.rn.f32 $0, s, q, x; }"
)


@intrinsic
def expm1(typing_context, value):
    """exp(value) - 1 of a number that is not positive; of float32 without the branches of the general function."""

    def codegen(context, builder, signature, arguments):
        if value == types.float32:
            return asm(builder, F32, arguments, _EXPM1_TEXT, "=f,f", False)
        return library(builder, "__nv_expm1", arguments)

    return value(value), codegen


@intrinsic
def inverse_root(typing_context, value):
    """1 / sqrt(value) to a spacing or two, of a number that is neither 0 nor subnormal."""

    def codegen(context, builder, signature, arguments):
        if value == types.float32:
            return asm(builder, F32, arguments, "rsqrt.approx.ftz.f32 $0, $1;", "=f,f", False)
        return library(builder, "__nv_rsqrt", arguments)

    return value(value), codegen


@intrinsic
def larger(typing_context, one, other):
    """The larger of two numbers; of a number and NaN the number."""

    def codegen(context, builder, signature, arguments):
        return asm(builder, F32, arguments, "max.f32 $0, $1, $2;", "=f,f,f", False)

    return types.float32(types.float32, types.float32), codegen


@intrinsic
def cut_tf32(typing_context, value):
    """``value`` without the bits that TF32 has not."""

    def codegen(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], I32)
        return builder.bitcast(builder.and_(bits, ir.Constant(I32, 0xFFFFE000)), F32)

    return types.float32(types.float32), codegen


@intrinsic
def to_tf32(typing_context, value):
    """``value`` rounded to TF32, to nearest, ties away from zero."""

    def codegen(context, builder, signature, arguments):
        bits = asm(builder, I32, [arguments[0]], "cvt.rna.tf32.f32 $0, $1;", "=r,f", False)
        return builder.bitcast(bits, F32)

    return types.float32(types.float32), codegen


def _halves(kind):
    """An intrinsic that rounds two numbers to two bytes each, and has them in 4."""

    @intrinsic
    def halves(typing_context, one, other):
        def codegen(context, builder, signature, arguments):
            text = f"cvt.rn.{kind}x2.f32 $0, $2, $1;"
            return builder.bitcast(asm(builder, I32, arguments, text, "=r,f,f", False), F32)

        return types.float32(types.float32, types.float32), codegen

    return halves


halves_float16, halves_bfloat16 = _halves("f16"), _halves("bf16")

HALVES = {"float16": halves_float16, "bfloat16": halves_bfloat16}


@intrinsic
def from_bfloat16(typing_context, element):
    """The number that a bfloat16 is, of its bits."""

    def codegen(context, builder, signature, arguments):
        whole = builder.shl(builder.zext(arguments[0], I32), ir.Constant(I32, 16))
        return builder.bitcast(whole, F32)

    return types.float32(types.uint16), codegen


@intrinsic
def to_bfloat16(typing_context, value):
    """The bits of the bfloat16 nearest to a number, of two the even one; from compute capability 8.0 on."""

    def codegen(context, builder, signature, arguments):
        half = ir.IntType(16)
        return asm(builder, half, arguments, "cvt.rn.bf16.f32 $0, $1;", "=h,f", False)

    return types.uint16(types.float32), codegen


@intrinsic
def clock(typing_context):
    """Cycles that the multiprocessor has counted."""

    def codegen(context, builder, signature, arguments):
        return asm(builder, I64, [], "mov.u64 $0, %clock64;", "=l,~{memory}")

    return types.int64(), codegen
