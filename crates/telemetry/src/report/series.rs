//! A curve that never outgrows its bound.

/// Most points of a curve; the screen has no more columns.
pub const MOST_POINTS: usize = 1000;

/// Points (x, y) in order of x. At [`MOST_POINTS`], neighbours are joined to their mean and later points are means of as many.
#[derive(Clone, Debug)]
pub struct Series {
    points: Vec<(f64, f64)>,
    /// Iterations of one point.
    stride: u32,
    /// Sum of the point being made: count, x, y.
    open: (u32, f64, f64),
}

impl Default for Series {
    fn default() -> Series {
        Series { points: Vec::new(), stride: 1, open: (0, 0.0, 0.0) }
    }
}

impl Series {
    /// Adds a point behind all others.
    pub fn push(&mut self, x: f64, y: f64) {
        let (count, sum_x, sum_y) = self.open;
        self.open = (count + 1, sum_x + x, sum_y + y);
        if self.open.0 < self.stride {
            return;
        }
        let (count, sum_x, sum_y) = std::mem::take(&mut self.open);
        self.points.push((sum_x / f64::from(count), sum_y / f64::from(count)));
        // An even number: every mean is of equally many iterations.
        if self.points.len() == MOST_POINTS {
            self.points = self.points.chunks(2).map(mean).collect();
            self.stride = self.stride.saturating_mul(2);
        }
    }

    /// All points, the unfinished last one included.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let (count, x, y) = self.open;
        let mut points = self.points.clone();
        if count > 0 {
            points.push((x / f64::from(count), y / f64::from(count)));
        }
        points
    }

    /// True before the first point.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty() && self.open.0 == 0
    }
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    (points.iter().map(|p| p.0).sum::<f64>() / n, points.iter().map(|p| p.1).sum::<f64>() / n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_curves_are_kept_as_they_are() {
        let mut s = Series::default();
        assert!(s.is_empty());
        for i in 0..MOST_POINTS - 1 {
            s.push(i as f64, -(i as f64));
        }
        assert_eq!(s.points().len(), MOST_POINTS - 1);
        assert_eq!(s.points()[7], (7.0, -7.0));
    }

    #[test]
    fn long_curves_keep_their_shape_in_bounded_space() {
        let mut s = Series::default();
        for i in 0..1_000_000 {
            s.push(f64::from(i), 2.0 * f64::from(i) + 1.0);
        }
        let points = s.points();
        assert!((MOST_POINTS / 2..=MOST_POINTS).contains(&points.len()), "{}", points.len());
        assert!(points.windows(2).all(|w| w[0].0 < w[1].0));
        // Means of a line lie on it; sums of some thousand integers below 2^53 are exact, the division rounds once.
        assert!(points.iter().all(|(x, y)| (y - (2.0 * x + 1.0)).abs() < 1e-6));
    }
}
