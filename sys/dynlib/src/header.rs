//! C++ that compiles only if a vendor's header agrees with a table: for checks that need the header, and nothing to run.

use std::fmt;

/// What a header must say.
#[derive(Clone, Debug)]
pub struct HeaderCheck {
    text: String,
    claims: usize,
}

/// Compares number and sizes of a function's arguments, and the size of its result.
const SIZES: &str = "template <class T> struct bytes_of { static constexpr size_t value = sizeof(T); };
template <> struct bytes_of<void> { static constexpr size_t value = 0; };
template <class R, class... A>
constexpr bool sizes(R (*)(A...), size_t result, std::initializer_list<size_t> want) {
  const size_t have[] = {sizeof(A)..., 0};
  size_t i = 0;
  for (size_t w : want)
    if (i >= sizeof...(A) || have[i++] != w) return false;
  return i == sizeof...(A) && bytes_of<R>::value == result;
}
";

impl HeaderCheck {
    /// With these headers.
    pub fn of(headers: &[&str]) -> HeaderCheck {
        let includes: String = headers.iter().map(|h| format!("#include \"{h}\"\n")).collect();
        HeaderCheck {
            text: format!("#include <climits>\n#include <cstddef>\n#include <initializer_list>\n{includes}{SIZES}"),
            claims: 0,
        }
    }

    /// A condition that must hold, in C++.
    pub fn claim(&mut self, what: &str, condition: &str) {
        self.text.push_str(&format!("static_assert({condition}, \"{what}\");\n"));
        self.claims += 1;
    }

    /// Other lines of C++: conditions of the preprocessor, values to ask.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Constants and enumerators.
    pub fn constants(&mut self, constants: &[(&str, i64)]) {
        for (name, value) in constants {
            self.claim(name, &format!("(long long)({name}) == {value}LL"));
        }
    }

    /// Functions, as `SIGNATURES` of a table has them.
    pub fn functions(&mut self, signatures: &[(&str, &[usize], usize)]) {
        for (name, arguments, result) in signatures {
            let list: Vec<String> = arguments.iter().map(usize::to_string).collect();
            self.claim(name, &format!("sizes(&{name}, {result}, {{{}}})", list.join(", ")));
        }
    }

    /// Conditions so far.
    pub fn claims(&self) -> usize {
        self.claims
    }
}

impl fmt::Display for HeaderCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Declares constants, and a list of them by name: for [`HeaderCheck::constants`].
#[macro_export]
macro_rules! constants {
    ($list:ident: $($(#[$doc:meta])* $name:ident: $ty:ty = $value:expr;)*) => {
        $($(#[$doc])* pub const $name: $ty = $value;)*
        /// The constants by name, for checks against headers.
        pub const $list: &[(&str, i64)] = &[$((stringify!($name), $value as i64)),*];
    };
}

/// Claims size, alignment and the places of fields of a struct: `header_layout!(check, Struct, field as theirs)`.
#[macro_export]
macro_rules! header_layout {
    ($check:expr, $ty:ident $(, $field:ident as $theirs:ident)* $(,)?) => {{
        let name = stringify!($ty);
        let (size, alignment) = (size_of::<$ty>(), align_of::<$ty>());
        $check.claim(name, &format!("sizeof({name}) == {size} && alignof({name}) == {alignment}"));
        $({
            let (theirs, at) = (stringify!($theirs), std::mem::offset_of!($ty, $field));
            $check.claim(&format!("{name}.{theirs}"), &format!("offsetof({name}, {theirs}) == {at}"));
        })*
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Pair {
        type_: u8,
        value: u32,
    }

    #[test]
    fn claims_are_c_plus_plus() {
        let mut check = HeaderCheck::of(&["vendor.h"]);
        check.constants(&[("MOST", -3)]);
        check.functions(&[("make", &[8, 4], 4), ("stop", &[], 0)]);
        header_layout!(check, Pair, type_ as type, value as value);
        let _ = Pair { type_: 0, value: 0 };
        let text = check.to_string();
        assert!(text.contains("#include \"vendor.h\"\n") && check.claims() == 6, "{text}");
        for line in [
            "static_assert((long long)(MOST) == -3LL, \"MOST\");",
            "static_assert(sizes(&make, 4, {8, 4}), \"make\");",
            "static_assert(sizes(&stop, 0, {}), \"stop\");",
            "static_assert(sizeof(Pair) == 8 && alignof(Pair) == 4, \"Pair\");",
            "static_assert(offsetof(Pair, type) == 0, \"Pair.type\");",
            "static_assert(offsetof(Pair, value) == 4, \"Pair.value\");",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
