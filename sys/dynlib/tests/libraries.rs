//! Search, symbols and errors on libraries that every Linux has.

use std::ffi::{c_char, c_double};
use std::sync::Arc;

use ferrotron_dynlib::{Library, Place, Search};

ferrotron_dynlib::table! {
    /// Some of libm and libc.
    struct Some {
        required {
            /// libm.
            fn cos(x: c_double) -> c_double;
            /// libc.
            fn strlen(s: *const c_char) -> usize;
        }
        optional {
            /// libm.
            fn fabs(x: c_double) -> c_double;
            /// Nobody's.
            fn no_such_function();
        }
    }
}

ferrotron_dynlib::table! {
    /// What no libm has.
    struct Absent {
        required {
            /// libm's.
            fn sin(x: c_double) -> c_double;
            /// Nobody's.
            fn first_missing();
            /// Nobody's.
            fn second_missing();
        }
        optional {}
    }
}

fn system(name: &str) -> Arc<Library> {
    Search::new([name]).places([Place::system()]).open().expect("every Linux has it").into()
}

#[test]
fn a_table_spans_libraries_in_order() {
    let table = Some::load(&[system("libm.so.6"), system("libc.so.6")]).unwrap();
    // SAFETY: the signatures are those of C's standard library.
    let (one, three) = unsafe { ((table.cos)(0.0), (table.strlen)(c"abc".as_ptr())) };
    assert_eq!((one, three), (1.0, 3));
    let fabs = table.fabs.unwrap();
    // SAFETY: as above.
    assert_eq!(unsafe { fabs(-2.0) }, 2.0);
    assert!(table.no_such_function.is_none());
    assert_eq!(table.lacking(), ["no_such_function"]);
    assert_eq!((Some::REQUIRED, Some::OPTIONAL.len(), table.libraries.len()), (&["cos", "strlen"][..], 2, 2));
}

#[test]
fn missing_symbols_are_named_one_a_line() {
    let missing = Absent::load(&[system("libm.so.6"), system("libc.so.6")]).err().unwrap();
    assert_eq!(missing.names, ["first_missing", "second_missing"]);
    assert_eq!(
        missing.to_string(),
        "Absent: 2 of its symbols missing\n  no first_missing in libm.so.6, libc.so.6\n  \
         no second_missing in libm.so.6, libc.so.6"
    );
}

#[test]
fn a_search_goes_by_name_then_place_and_lists_what_it_tried() {
    let folder = std::env::temp_dir().join(format!("ferrotron-dynlib-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libfirst.so"), "not a library").unwrap();
    let places = || [Place::folder("SOME_HOME", folder.join("lib64")), Place::folder("usual place", &folder)];

    let e = Search::new(["libfirst.so", "libsecond.so"]).places(places()).open().unwrap_err();
    let names: Vec<_> = e.tried.iter().map(|t| t.candidate.rsplit_once('/').unwrap().1).collect();
    assert_eq!(names, ["libfirst.so", "libfirst.so", "libsecond.so", "libsecond.so"]);
    let outcomes: Vec<_> = e.tried.iter().map(|t| t.outcome.as_str()).collect();
    assert_eq!((outcomes[0], outcomes[2], outcomes[3]), ("no such file", "no such file", "no such file"));
    // a file that is no library is not the end of the search, and the loader's words are kept
    assert!(outcomes[1].contains("libfirst.so") && outcomes[1].len() > 20, "{}", outcomes[1]);
    assert!(e.to_string().starts_with("cannot load libfirst.so or libsecond.so\n  searched "), "{e}");
    assert!(e.to_string().contains("(SOME_HOME): no such file"), "{e}");

    let found = Search::new(["libfirst.so", "libm.so.6"]).places(places()).places([Place::system()]).open().unwrap();
    assert_eq!(found.path(), "libm.so.6");
    std::fs::remove_dir_all(&folder).unwrap();
}
