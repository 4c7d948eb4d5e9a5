//! A curve drawn with characters: the loss of a run in the terminal.
//!
//! Points are joined by straight lines on a grid of dots; a cell shows 2 × 4 dots in Braille, one in ASCII.

/// Characters to draw with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Glyphs {
    /// Braille patterns (U+2800…), 2 × 4 dots a cell, and box lines for the axes.
    Braille,
    /// `*`, `|`, `+` and `-` only.
    Ascii,
}

/// Size and look of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Title above the picture; empty for none.
    pub title: String,
    /// Columns of the picture without the axis, at least 16.
    pub width: usize,
    /// Rows of the picture without the axis, at least 3.
    pub height: usize,
    /// Characters.
    pub glyphs: Glyphs,
}

/// Corners of the picture in the units of the points.
struct Frame {
    x: (f64, f64),
    y: (f64, f64),
}

impl Frame {
    /// The frame around finite points; a flat or single-point curve gets some room.
    fn around(points: &[(f64, f64)]) -> Frame {
        let bounds = |values: &mut dyn Iterator<Item = f64>| {
            values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), v| (low.min(v), high.max(v)))
        };
        let x = bounds(&mut points.iter().map(|p| p.0));
        let y = bounds(&mut points.iter().map(|p| p.1));
        let room =
            |(low, high): (f64, f64), room: f64| if low == high { (low - room, high + room) } else { (low, high) };
        Frame { x: room(x, 1.0), y: room(y, y.0.abs().max(1.0) * 0.5) }
    }

    /// Dot of a point on a grid of `columns` × `rows`, row 0 on top.
    fn dot(&self, point: (f64, f64), columns: usize, rows: usize) -> (usize, usize) {
        let share = |v: f64, (low, high): (f64, f64)| ((v - low) / (high - low)).clamp(0.0, 1.0);
        let column = (share(point.0, self.x) * (columns - 1) as f64).round() as usize;
        let row = ((1.0 - share(point.1, self.y)) * (rows - 1) as f64).round() as usize;
        (column.min(columns - 1), row.min(rows - 1))
    }
}

impl Curve {
    /// The picture of `points` (iteration, value) in increasing iteration, lines joined by newlines. Values that are
    /// not finite leave a gap; without any finite value the text says so.
    pub fn draw(&self, points: &[(u64, f64)]) -> String {
        let finite: Vec<(f64, f64)> =
            points.iter().filter(|(_, y)| y.is_finite()).map(|&(x, y)| (x as f64, y)).collect();
        if finite.is_empty() {
            return format!("{}: no finite values to draw", self.title);
        }
        let frame = Frame::around(&finite);
        let (width, height) = (self.width.max(16), self.height.max(3));
        let (across, down) = match self.glyphs {
            Glyphs::Braille => (2, 4),
            Glyphs::Ascii => (1, 1),
        };
        let (columns, rows) = (width * across, height * down);
        let mut dots = vec![false; columns * rows];
        let mut previous = None;
        for &(x, y) in points {
            if !y.is_finite() {
                previous = None;
                continue;
            }
            let dot = frame.dot((x as f64, y), columns, rows);
            join(previous.unwrap_or(dot), dot, &mut |column, row| dots[row * columns + column] = true);
            previous = Some(dot);
        }
        let cell = |column: usize, row: usize| {
            let lit = |dx: usize, dy: usize| dots[(row * down + dy) * columns + column * across + dx];
            match self.glyphs {
                Glyphs::Ascii => {
                    if lit(0, 0) {
                        '*'
                    } else {
                        ' '
                    }
                }
                Glyphs::Braille => braille(lit),
            }
        };
        self.with_axes(&frame, width, height, &cell)
    }

    fn with_axes(&self, frame: &Frame, width: usize, height: usize, cell: &dyn Fn(usize, usize) -> char) -> String {
        let (bar, tick, corner, dash) = match self.glyphs {
            Glyphs::Braille => ('│', '┤', '└', '─'),
            Glyphs::Ascii => ('|', '+', '+', '-'),
        };
        let (low, high) = frame.y;
        let ticks = [
            (0, high),
            (height / 2, high - (high - low) * (height / 2) as f64 / (height - 1) as f64),
            (height - 1, low),
        ];
        let labels = ticks.map(|(row, value)| (row, label(value)));
        let margin = labels.iter().map(|(_, text)| text.len()).max().unwrap_or(0);
        let mut lines = Vec::with_capacity(height + 3);
        if !self.title.is_empty() {
            lines.push(format!("{:margin$}  {}", "", self.title));
        }
        for row in 0..height {
            let picture: String = (0..width).map(|column| cell(column, row)).collect();
            let line = match labels.iter().find(|(at, _)| *at == row) {
                Some((_, text)) => format!("{text:>margin$} {tick}{picture}"),
                None => format!("{:margin$} {bar}{picture}", ""),
            };
            lines.push(line.trim_end_matches([' ', '\u{2800}']).to_string());
        }
        lines.push(format!("{:margin$} {corner}{}", "", dash.to_string().repeat(width)));
        // Iterations are integers; a single point has room of 1 on both sides, which may reach -1.
        let number = |x: f64| format!("{}", x.max(0.0).round());
        let (first, last) = (number(frame.x.0), number(frame.x.1));
        let middle = number((frame.x.0 + frame.x.1) / 2.0);
        let left_gap = (width / 2).saturating_sub(first.len() + middle.len() / 2).max(1);
        let right_gap = width.saturating_sub(first.len() + left_gap + middle.len() + last.len()).max(1);
        lines.push(format!("{:margin$}  {first}{:left_gap$}{middle}{:right_gap$}{last}", "", "", ""));
        lines.join("\n")
    }
}

/// Three decimals, or scientific notation for very small and very large values.
fn label(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || (0.01..100_000.0).contains(&size) { format!("{value:.3}") } else { format!("{value:.2e}") }
}

/// The Braille character of a cell: dots 1 2 3 7 in the left column, 4 5 6 8 in the right one.
fn braille(lit: impl Fn(usize, usize) -> bool) -> char {
    const BITS: [[u32; 4]; 2] = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]];
    let mut pattern = 0;
    for (dx, column) in BITS.iter().enumerate() {
        for (dy, bit) in column.iter().enumerate() {
            if lit(dx, dy) {
                pattern |= bit;
            }
        }
    }
    char::from_u32(0x2800 + pattern).unwrap_or(' ')
}

/// Visits the dots of a straight line (Bresenham), both ends included.
fn join(from: (usize, usize), to: (usize, usize), visit: &mut dyn FnMut(usize, usize)) {
    let (mut x, mut y) = (from.0 as i64, from.1 as i64);
    let (end_x, end_y) = (to.0 as i64, to.1 as i64);
    let (dx, dy) = ((end_x - x).abs(), -(end_y - y).abs());
    let (step_x, step_y) = ((end_x - x).signum(), (end_y - y).signum());
    let mut error = dx + dy;
    loop {
        visit(x as usize, y as usize);
        if x == end_x && y == end_y {
            return;
        }
        let doubled = 2 * error;
        if doubled >= dy {
            error += dy;
            x += step_x;
        }
        if doubled <= dx {
            error += dx;
            y += step_y;
        }
    }
}
