"""A kernel is optimised once, when it is linked.

Where nvJitLink is there Numba hands it NVVM's unfinished code, which it optimises and assembles. Before that Numba
compiles the kernel to PTX as well, from start to end, to see whether that names functions of Numba's own library.
Here it looks for them in LLVM's text, which names them too.
"""


def optimise_once():
    """Let Numba compile kernels so from now on."""
    from numba.cuda import dispatcher

    compile_cuda = dispatcher.compile_cuda

    def compile_without_ptx(*arguments, lto=False, **options):
        found = compile_cuda(*arguments, lto=lto, **options)
        library = found.library

        def instead():
            del library.get_asm_str  # who asks later wants PTX
            return library.get_llvm_str()

        if (
            lto and not found.target_context.enable_nrt
        ):  # whose functions are looked for as PTX declares them
            library.get_asm_str = instead
        return found

    dispatcher.compile_cuda = compile_without_ptx
