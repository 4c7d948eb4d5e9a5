"""Compiles one CUDA source to PTX with the NVRTC of a folder: nvrtc.py FOLDER SOURCE PTX ARCH"""

import ctypes
import glob
import sys

folder, source, ptx, arch = sys.argv[1:]
builtins = glob.glob(folder + "/**/libnvrtc-builtins.so*", recursive=True)
ctypes.CDLL(builtins[0], mode=ctypes.RTLD_GLOBAL)  # NVRTC looks for it by name
nvrtc = ctypes.CDLL(glob.glob(folder + "/**/libnvrtc.so.12", recursive=True)[0])
program = ctypes.c_void_p()
text = open(source, "rb").read()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"kernels.cu", 0, None, None)
options = (ctypes.c_char_p * 2)(b"--gpu-architecture=" + arch.encode(), b"-std=c++17")
status = nvrtc.nvrtcCompileProgram(program, len(options), options)


def output(what):
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value


log = output("ProgramLog")
if status != 0 or log.strip():
    sys.exit(f"NVRTC gives {status}: {log.decode()}")
open(ptx, "wb").write(output("PTX"))
