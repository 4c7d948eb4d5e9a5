//! Pictures as text, checked by eye once and pinned here.

use ferrotron_telemetry::{Curve, Glyphs};

fn curve(glyphs: Glyphs) -> Curve {
    Curve { title: "lm loss".to_string(), width: 24, height: 6, glyphs }
}

/// Falls from 11.9 to 3.3 like a training loss; rational, so that no library's `exp` matters.
fn falling() -> Vec<(u64, f64)> {
    (1..=200).map(|t| (t, 2.0 + 200.0 / (t as f64 + 19.0))).collect()
}

fn check(glyphs: Glyphs, points: &[(u64, f64)], expected: &[&str]) {
    let picture = curve(glyphs).draw(points);
    assert_eq!(picture.lines().collect::<Vec<_>>(), expected, "\n{picture}");
}

#[test]
fn ascii() {
    check(
        Glyphs::Ascii,
        &falling(),
        &[
            "        lm loss",
            "12.000 +*",
            "       |**",
            "       | **",
            " 6.548 +  ***",
            "       |    *******",
            " 2.913 +          **************",
            "       +------------------------",
            "        1          101       200",
        ],
    );
}

#[test]
fn braille() {
    check(
        Glyphs::Braille,
        &falling(),
        &[
            "        lm loss",
            "12.000 ┤⢇",
            "       │⠸⡀",
            "       │⠀⠱⡀",
            " 6.548 ┤⠀⠀⠱⣄",
            "       │⠀⠀⠀⠀⠙⠢⢤⣀⡀",
            " 2.913 ┤⠀⠀⠀⠀⠀⠀⠀⠀⠉⠉⠓⠒⠒⠢⠤⠤⠤⠤⠤⣄⣀⣀⣀⣀",
            "       └────────────────────────",
            "        1          101       200",
        ],
    );
}

#[test]
fn a_value_that_is_not_finite_leaves_a_gap() {
    check(
        Glyphs::Ascii,
        &[(0, 1.0), (50, f64::NAN), (100, 3.0), (200, 2.0)],
        &[
            "       lm loss",
            "3.000 +            **",
            "      |              ****",
            "      |                  ****",
            "1.800 +                      **",
            "      |",
            "1.000 +*",
            "      +------------------------",
            "       0          100       200",
        ],
    );
    assert_eq!(curve(Glyphs::Ascii).draw(&[(1, f64::NAN)]), "lm loss: no finite values to draw");
    assert_eq!(curve(Glyphs::Ascii).draw(&[]), "lm loss: no finite values to draw");
}

#[test]
fn every_point_is_inside_the_picture() {
    let extremes: [&[(u64, f64)]; 5] = [
        &[(7, 2.0)],
        &[(0, 0.0), (1, 0.0)],
        &[(0, f64::MAX), (u64::MAX, f64::MIN)],
        &[(5, 5e-324), (6, 1e-300)],
        &[(9, 3.0), (2, 4.0)], // out of order
    ];
    for points in extremes {
        for glyphs in [Glyphs::Ascii, Glyphs::Braille] {
            let small = Curve { title: String::new(), width: 0, height: 0, glyphs };
            let picture = small.draw(points);
            assert_eq!(picture.lines().count(), 5, "{picture}");
            let is_ink = |c: char| c == '*' || ('\u{2801}'..='\u{28FF}').contains(&c);
            assert!(picture.contains(is_ink), "{points:?}\n{picture}");
        }
    }
}
