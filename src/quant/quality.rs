//! Quantisation quality: error measures of a quantised matrix.

use super::{DenseMatrix, QuantError, QuantMatrix};

/// Difference between a quantised matrix and its original, over all elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quality {
    /// Mean squared error.
    pub mse: f64,
    /// Signal-to-noise ratio in dB: power of the original over power of the error; infinite without error.
    pub snr_db: f64,
    /// Cosine similarity of the two matrices as vectors; 1 if both are zero.
    pub cosine: f64,
}

impl Quality {
    /// Compares `quantised` with `original`. Sums are accumulated in f64.
    ///
    /// # Errors
    /// [`QuantError::Length`] if the shapes differ.
    pub fn measure(original: &DenseMatrix, quantised: &QuantMatrix) -> Result<Quality, QuantError> {
        Distance::measure(original, quantised).map(|distance| distance.quality())
    }
}

/// Sums of squares and products. The sums of blocks of rows add up to those of the whole matrix.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Distance {
    elements: f64,
    error: f64,
    original: f64,
    quantised: f64,
    product: f64,
}

impl Distance {
    pub(super) fn measure(original: &DenseMatrix, quantised: &QuantMatrix) -> Result<Distance, QuantError> {
        super::check_length("rows", original.rows(), quantised.rows())?;
        super::check_length("columns", original.cols(), quantised.cols())?;
        let cols = original.cols();
        let (mut expected, mut found) = (vec![0.0; cols], vec![0.0; cols]);
        let mut sums = Distance { elements: original.rows() as f64 * cols as f64, ..Distance::default() };
        for row in 0..original.rows() {
            original.widen_row(row, &mut expected);
            quantised.dequantize_row(row, &mut found);
            sums.add_row(&expected, &found);
        }
        Ok(sums)
    }

    fn add_row(&mut self, original: &[f32], quantised: &[f32]) {
        for (&x, &y) in original.iter().zip(quantised) {
            let (x, y) = (f64::from(x), f64::from(y));
            self.error += (x - y) * (x - y);
            self.original += x * x;
            self.quantised += y * y;
            self.product += x * y;
        }
    }

    /// Adds the sums of another block of rows.
    pub(crate) fn add(&mut self, other: &Distance) {
        self.elements += other.elements;
        self.error += other.error;
        self.original += other.original;
        self.quantised += other.quantised;
        self.product += other.product;
    }

    pub(crate) fn quality(&self) -> Quality {
        let snr_db =
            if self.error == 0.0 { f64::INFINITY } else { 10.0 * (self.original / self.error).log10() };
        let norms = (self.original * self.quantised).sqrt();
        let cosine = match (self.error == 0.0, norms > 0.0) {
            (true, _) => 1.0,
            (false, true) => self.product / norms,
            (false, false) => 0.0,
        };
        Quality { mse: self.error / self.elements.max(1.0), snr_db, cosine }
    }
}
