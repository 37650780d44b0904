//! Dimensions and lengths of embeddings.

use super::EmbedError;

/// Keeps the first `dimensions` elements of each row (Matryoshka representations, Kusupati et al. 2022), then
/// scales it to unit length (L2). A row of zeros stays as it is.
///
/// # Errors
/// [`EmbedError::Dimensions`] unless the rows have `dimensions` elements.
pub fn unit_rows(
    rows: &mut [Vec<f32>],
    width: usize,
    dimensions: Option<usize>,
    normalize: bool,
) -> Result<(), EmbedError> {
    let kept = dimensions.unwrap_or(width);
    if kept == 0 || kept > width {
        return Err(EmbedError::Dimensions { found: kept, width });
    }
    for row in rows {
        row.truncate(kept);
        let squares: f64 = row.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        if normalize && squares > 0.0 {
            let scale = 1.0 / squares.sqrt();
            row.iter_mut().for_each(|x| *x = (f64::from(*x) * scale) as f32);
        }
    }
    Ok(())
}
