//! Which instruction set kernels run on, found once at run time, and the macro that compiles one loop for each.

/// Instruction sets that have kernels of their own. The choice decides the bits of results (order and fusing of
/// operations), so it is part of the device's model name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 F, BW, DQ, VL with FMA and F16C.
    Avx512,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// Whatever the compiler's base target has: NEON on aarch64, SSE2 on x86-64.
    Portable,
}

impl Isa {
    /// The best one that this processor has.
    pub fn detect() -> Isa {
        #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
        {
            let v3 = is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
                && is_x86_feature_detected!("bmi2");
            let v4 = is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl");
            if v3 && v4 {
                return Isa::Avx512;
            }
            if v3 {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// All that this processor can run, best first.
    pub fn available() -> &'static [Isa] {
        match Isa::detect() {
            Isa::Avx512 => &[Isa::Avx512, Isa::Avx2, Isa::Portable],
            Isa::Avx2 => &[Isa::Avx2, Isa::Portable],
            Isa::Portable => &[Isa::Portable],
        }
    }

    /// Name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2+fma",
            Isa::Portable if cfg!(target_arch = "aarch64") => "neon",
            Isa::Portable => "portable",
        }
    }
}

/// Compiles one function for each instruction set and picks one by its first argument, an [`Isa`].
///
/// ```text
/// multiversion! {
///     /// y += alpha x
///     fn axpy<T: Storage>(alpha: f32, x: &[T], y: &mut [f32]) {
///         for (y, x) in y.iter_mut().zip(x) { *y += alpha * x.to_f32(); }
///     }
/// }
/// axpy(team.isa(), 2.0, x, y);
/// ```
///
/// What the body calls must be `#[inline(always)]` (or another multiversion function, given the same `Isa`) to be
/// compiled for the wide registers too. Slices in and out keep bounds checks out of the loops.
#[macro_export]
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($g:ident : $bound:path),+>)? ($($arg:ident : $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[allow(clippy::too_many_arguments)]
        $vis fn $name $(<$($g: $bound),+>)? (isa: $crate::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,bmi2")]
            fn avx512 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                body $(::<$($g),+>)? ($($arg),*)
            }

            #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
            #[target_feature(enable = "avx2,fma,f16c,bmi2")]
            fn avx2 $(<$($g: $bound),+>)? ($($arg: $ty),*) $(-> $ret)? {
                body $(::<$($g),+>)? ($($arg),*)
            }

            match isa {
                #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
                // SAFETY: a team has this `Isa` only when the processor has all of its features.
                $crate::isa::Isa::Avx512 => unsafe { avx512 $(::<$($g),+>)? ($($arg),*) },
                #[cfg(all(target_arch = "x86_64", not(ferrotron_portable)))]
                // SAFETY: as above.
                $crate::isa::Isa::Avx2 => unsafe { avx2 $(::<$($g),+>)? ($($arg),*) },
                _ => body $(::<$($g),+>)? ($($arg),*),
            }
        }
    };
}
