//! Compiles kernel source to machine code with NVRTC. The result is always a CUBIN for one architecture, never PTX,
//! which a driver older than the compiler would refuse.
#![allow(unsafe_code)] // Calls NVRTC.

use std::ffi::{CStr, CString, c_char};
use std::ptr::null;

use cudarc::nvrtc::sys::{self, nvrtcResult};

use super::library;

/// A failed compilation: the compiler's messages.
pub(super) type Failure = String;

/// The compiler's version.
pub(super) fn version() -> Result<(i32, i32), Failure> {
    library::nvrtc()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the symbol was probed; both point to integers.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

/// The options of a compiler of this version, except the architecture.
pub(super) fn options(version: (i32, i32)) -> &'static [&'static str] {
    // `--minimal` leaves out the declarations of textures and of CUDA's host interface, which no kernel uses. The compiler
    // reads them again for each kernel, and only one of its threads at a time reads source text.
    if version >= MINIMAL_SINCE { &["--std=c++17", "--minimal"] } else { &["--std=c++17"] }
}

/// The first version that knows `--minimal`.
const MINIMAL_SINCE: (i32, i32) = (12, 4);

/// Compiles a kernel source, as `REFRAIN_KERNELS=DIR` makes operations write it, for an architecture such as `sm_90a`
/// (compute capability 9.0; its own instructions need the `a`). It needs NVRTC and no GPU. Returns the messages of
/// the compiler, including the assembler's on registers and spills.
///
/// # Errors
/// The messages of the compiler, or what is missing.
pub fn compile_kernel(text: &str, architecture: &str) -> Result<String, String> {
    let program = NvrtcProgram::compile("kernel", text, architecture, &["--ptxas-options=-v"])?;
    program.cubin()?;
    Ok(program.log())
}

/// Compiles a source for an architecture such as `sm_90a`.
pub(super) fn cubin(name: &str, text: &str, architecture: &str) -> Result<Vec<u8>, Failure> {
    NvrtcProgram::compile(name, text, architecture, &[])?.cubin()
}

/// A program of the compiler. Dropping it destroys it.
struct NvrtcProgram(sys::nvrtcProgram);

impl NvrtcProgram {
    fn compile(
        name: &str,
        text: &str,
        architecture: &str,
        options: &[&str],
    ) -> Result<NvrtcProgram, Failure> {
        let own = self::options(version()?);
        let c_string = |s: &str| CString::new(s).map_err(|_| "a kernel's text holds a zero byte".to_string());
        let (text, name) = (c_string(text)?, c_string(name)?);
        let options: Vec<CString> = std::iter::once(format!("--gpu-architecture={architecture}"))
            .chain(own.iter().chain(options).map(|o| o.to_string()))
            .map(|o| c_string(&o))
            .collect::<Result<_, _>>()?;
        let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();

        let mut program = NvrtcProgram(std::ptr::null_mut());
        // SAFETY: strings end with zero and live across the call; no headers are passed.
        let made = unsafe {
            sys::nvrtcCreateProgram(&mut program.0, text.as_ptr(), name.as_ptr(), 0, null(), null())
        };
        check("nvrtcCreateProgram", made)?;
        // SAFETY: the program was made; the options live across the call.
        let done = unsafe { sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr()) };
        if done != nvrtcResult::NVRTC_SUCCESS {
            return Err(format!("{}\n{}", message(done), program.log()));
        }
        Ok(program)
    }

    /// The machine code.
    fn cubin(&self) -> Result<Vec<u8>, Failure> {
        let mut size = 0;
        // SAFETY: the program was compiled; `size` is a size_t.
        check("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) })?;
        let mut cubin = vec![0u8; size];
        // SAFETY: the buffer has the size that was asked for.
        check("nvrtcGetCUBIN", unsafe { sys::nvrtcGetCUBIN(self.0, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: the program was made; the buffer has the size that was asked for.
        unsafe {
            if sys::nvrtcGetProgramLogSize(self.0, &mut size) != nvrtcResult::NVRTC_SUCCESS {
                return String::new();
            }
            let mut log = vec![0u8; size];
            if sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()) != nvrtcResult::NVRTC_SUCCESS {
                return String::new();
            }
            String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
        }
    }
}

impl Drop for NvrtcProgram {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: made by nvrtcCreateProgram, destroyed once.
            unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
        }
    }
}

fn message(result: nvrtcResult) -> String {
    // SAFETY: returns a constant string for any value.
    unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) }.to_string_lossy().into_owned()
}

fn check(call: &str, result: nvrtcResult) -> Result<(), Failure> {
    if result == nvrtcResult::NVRTC_SUCCESS { Ok(()) } else { Err(format!("{call}: {}", message(result))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compiler_gets_only_options_that_it_knows() {
        assert!(!options((12, 3)).contains(&"--minimal"));
        assert!(options((12, 4)).contains(&"--minimal") && options((13, 0)).contains(&"--minimal"));
    }
}
