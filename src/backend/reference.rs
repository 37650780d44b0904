//! tmp
use super::*;
use crate::quant::WeightMatrix;
use half::f16;
/// tmp
#[derive(Debug, Clone, Copy, Default)]
pub struct Reference;
/// tmp
#[derive(Debug)]
pub struct Mat {
    rows: usize,
    cols: usize,
    v: Vec<f32>,
}
/// tmp
#[derive(Debug)]
pub struct Pool {
    layout: KvLayout,
    pages: usize,
    k: Vec<f64>,
    v: Vec<f64>,
}
type A = Vec<f64>;
fn get(a: &A, p: &Place, n: usize) -> Vec<f64> {
    a[p.offset / 8..p.offset / 8 + n * p.cols].to_vec()
}
fn put(a: &mut A, p: &Place, v: &[f64]) {
    a[p.offset / 8..p.offset / 8 + v.len()].copy_from_slice(v);
}
fn norm(x: &mut [f64], w: &[f32], eps: f32) {
    let m = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let s = 1.0 / (m + eps as f64).sqrt();
    x.iter_mut().zip(w).for_each(|(x, w)| *x *= s * *w as f64);
}
fn act(a: Activation, x: f64) -> f64 {
    match a {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
    }
}
fn rot(x: &mut [f64], ang: &[f64], pairing: RopePairing) {
    let h = ang.len() / 2;
    for i in 0..h {
        let (c, s) = (ang[i], ang[h + i]);
        let (p, q) = match pairing {
            RopePairing::Interleaved => (2 * i, 2 * i + 1),
            RopePairing::Halves => (i, i + h),
        };
        let (a, b) = (x[p], x[q]);
        x[p] = a * c - b * s;
        x[q] = b * c + a * s;
    }
}
impl Backend for Reference {
    type Arena = A;
    type Vector = Vec<f32>;
    type Matrix = Mat;
    type KvPool = Pool;
    fn describe(&self) -> String {
        "tmp".into()
    }
    fn element_bytes(&self, _: Precision) -> usize {
        8
    }
    fn upload_vector(&self, v: &[f32]) -> Result<Vec<f32>, BackendError> {
        Ok(v.to_vec())
    }
    fn prepare(&self, m: WeightMatrix) -> Result<Mat, BackendError> {
        let (rows, cols) = (m.rows(), m.cols());
        let mut v = vec![0.0; rows * cols];
        for r in 0..rows {
            m.dequantize_row(r, &mut v[r * cols..(r + 1) * cols]);
        }
        Ok(Mat { rows, cols, v })
    }
    fn matrix_bytes(&self, m: &Mat) -> usize {
        m.v.len() * 4
    }
    fn arena(&self, bytes: usize, _: &[Op], _: StepLimits) -> Result<A, BackendError> {
        Ok(vec![f64::NAN; bytes / 8])
    }
    fn kv_pool(&self, layout: KvLayout, pages: usize) -> Result<Pool, BackendError> {
        let n = layout.layers * pages * 16 * layout.kv_heads * layout.head_dim;
        Ok(Pool { layout, pages, k: vec![0.0; n], v: vec![0.0; n] })
    }
    fn copy_page(&self, _: &mut Pool, _: PageId, _: PageId) -> Result<(), BackendError> {
        Ok(())
    }
    fn export_page(&self, _: &Pool, _: PageId, _: &mut Vec<u8>) -> Result<(), BackendError> {
        Ok(())
    }
    fn import_page(&self, _: &mut Pool, _: PageId, _: &[u8]) -> Result<(), BackendError> {
        Ok(())
    }
    fn write(&self, a: &mut A, p: &Place, v: &[f32]) -> Result<(), BackendError> {
        let v: Vec<f64> = v.iter().map(|&x| x as f64).collect();
        put(a, p, &v);
        Ok(())
    }
    fn read(&self, a: &A, p: &Place, first: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let o = p.offset / 8 + first * p.cols;
        for (o, v) in out.iter_mut().zip(&a[o..]) {
            *o = *v as f32;
        }
        Ok(())
    }
    fn execute(&self, op: &Op, f: &mut Frame<'_, Self>) -> Result<(), BackendError> {
        let (w, a, s) = (f.weights, &mut *f.arena, f.step);
        match op {
            Op::Embed { dst, table, scale } => {
                let t = &w.matrices[table.0 as usize];
                let v: Vec<f64> = s
                    .tokens
                    .iter()
                    .flat_map(|id| {
                        t.v[id.index() * t.cols..][..t.cols].iter().map(|&x| x as f64 * *scale as f64)
                    })
                    .collect();
                put(a, dst, &v);
            }
            Op::Norm { dst, src, norm: n, write } => {
                let mut v = get(a, src, src.rows.count(s));
                for r in v.chunks_mut(src.cols) {
                    norm(r, &w.vectors[n.weight.0 as usize], n.eps);
                }
                if *write == Write::Add {
                    let d = get(a, dst, dst.rows.count(s));
                    v.iter_mut().zip(d).for_each(|(v, d)| *v += d);
                }
                put(a, dst, &v);
            }
            Op::Matmul(m) => {
                let mut x = get(a, &m.src, m.src.rows.count(s));
                if let Some(n) = m.norm {
                    for r in x.chunks_mut(m.src.cols) {
                        norm(r, &w.vectors[n.weight.0 as usize], n.eps);
                    }
                }
                let mul = |id: MatrixId| -> Vec<f64> {
                    let t = &w.matrices[id.0 as usize];
                    assert_eq!(t.cols, m.src.cols);
                    x.chunks(t.cols)
                        .flat_map(|x| {
                            (0..t.rows).map(move |r| {
                                t.v[r * t.cols..][..t.cols]
                                    .iter()
                                    .zip(x)
                                    .map(|(a, b)| *a as f64 * b)
                                    .sum::<f64>()
                            })
                        })
                        .collect()
                };
                for p in &m.products {
                    let mut y = mul(p.matrix);
                    if let Some(b) = p.bias {
                        let b = &w.vectors[b.0 as usize];
                        for r in y.chunks_mut(b.len()) {
                            r.iter_mut().zip(b).for_each(|(y, b)| *y += *b as f64);
                        }
                    }
                    match p.epilogue {
                        Epilogue::Write(Write::Store) => {}
                        Epilogue::Write(Write::Add) => {
                            let d = get(a, &p.dst, p.dst.rows.count(s));
                            y.iter_mut().zip(d).for_each(|(v, d)| *v += d);
                        }
                        Epilogue::Gated { up, activation } => {
                            let u = mul(up);
                            y.iter_mut().zip(u).for_each(|(y, u)| *y = act(activation, *y) * u);
                        }
                    }
                    put(a, &p.dst, &y);
                }
            }
            Op::RopeAngles(r) => {
                let v: Vec<f64> = s
                    .positions
                    .iter()
                    .flat_map(|&p| {
                        let c = r.inv_freq.iter().map(move |f| (p as f64 * f).cos() * r.magnitude as f64);
                        let d = r.inv_freq.iter().map(move |f| (p as f64 * f).sin() * r.magnitude as f64);
                        c.chain(d)
                    })
                    .collect();
                put(a, &r.dst, &v);
            }
            Op::Rope { x, head_dim, rope } => {
                let n = x.rows.count(s);
                let ang = get(a, &rope.angles, n);
                let mut v = get(a, x, n);
                for (r, ang) in v.chunks_mut(x.cols).zip(ang.chunks(rope.angles.cols)) {
                    for h in r.chunks_mut(*head_dim) {
                        rot(h, ang, rope.pairing);
                    }
                }
                put(a, x, &v);
            }
            Op::KvAppend(k) => {
                let n = s.tokens.len();
                let ang = k.rope.map(|r| (get(a, &r.angles, n), r));
                let (mut q, mut kk, v) = (get(a, &k.q, n), get(a, &k.k, n), get(a, &k.v, n));
                for (x, cols, nm) in [(&mut q, k.q.cols, k.q_norm), (&mut kk, k.k.cols, k.k_norm)] {
                    for (i, r) in x.chunks_mut(cols).enumerate() {
                        for h in r.chunks_mut(k.heads.dim) {
                            if let Some(nm) = nm {
                                norm(h, &w.vectors[nm.weight.0 as usize], nm.eps);
                            }
                            if let Some((ang, r)) = &ang {
                                rot(h, &ang[i * r.angles.cols..][..r.angles.cols], r.pairing);
                            }
                        }
                    }
                }
                put(a, &k.q, &q);
                let nan = vec![f64::NAN; kk.len()];
                put(a, &k.k, &nan);
                let c = k.k.cols;
                for q in &s.sequences {
                    for row in q.rows.clone() {
                        let row = row as usize;
                        let p = s.positions[row];
                        let pg = s.pages[q.pages.start as usize..q.pages.end as usize]
                            .iter()
                            .find(|e| e.start == p / 16 * 16)
                            .unwrap();
                        let o = ((k.layer * f.kv.pages + pg.page.index()) * 16 + p as usize % 16) * c;
                        for i in 0..c {
                            f.kv.k[o + i] = f16::from_f64(kk[row * c + i]).to_f64();
                            f.kv.v[o + i] = f16::from_f64(v[row * c + i]).to_f64();
                        }
                    }
                }
            }
            Op::Attention(t) => {
                let n = s.tokens.len();
                let q = get(a, &t.q, n);
                let c = t.heads.kv * t.heads.dim;
                let d = t.heads.dim;
                let mut out = vec![0.0; n * t.dst.cols];
                for sq in &s.sequences {
                    for row in sq.rows.clone() {
                        let row = row as usize;
                        let p = s.positions[row];
                        for h in 0..t.heads.query {
                            let kh = h / (t.heads.query / t.heads.kv);
                            let mut sc = Vec::new();
                            for pg in &s.pages[sq.pages.start as usize..sq.pages.end as usize] {
                                for i in 0..16 {
                                    let j = pg.start + i;
                                    if j > p || t.window.is_some_and(|w| j + w <= p) {
                                        continue;
                                    }
                                    let o = ((t.layer * f.kv.pages + pg.page.index()) * 16 + i as usize) * c
                                        + kh * d;
                                    let mut z = (0..d)
                                        .map(|e| q[row * t.q.cols + h * d + e] * f.kv.k[o + e])
                                        .sum::<f64>()
                                        * t.scale as f64;
                                    if let Some(cap) = t.soft_cap {
                                        z = cap as f64 * (z / cap as f64).tanh();
                                    }
                                    sc.push((z, o));
                                }
                            }
                            let m = sc.iter().map(|x| x.0).fold(f64::NEG_INFINITY, f64::max);
                            let sum: f64 = sc.iter().map(|x| (x.0 - m).exp()).sum();
                            for (z, o) in sc {
                                let e = (z - m).exp() / sum;
                                for i in 0..d {
                                    out[row * t.dst.cols + h * d + i] += e * f.kv.v[o + i];
                                }
                            }
                        }
                    }
                }
                put(a, &t.dst, &out);
            }
            Op::GatherOutputs { dst, src } => {
                let x = get(a, src, s.tokens.len());
                let v: Vec<f64> =
                    s.outputs.iter().flat_map(|&r| x[r as usize * src.cols..][..src.cols].to_vec()).collect();
                put(a, dst, &v);
            }
            Op::Unary { dst, src, f: g } => {
                let mut x = get(a, src, src.rows.count(s));
                x.iter_mut().for_each(|x| {
                    *x = match *g {
                        UnaryFn::Activation(t) => act(t, *x),
                        UnaryFn::Scale(k) => *x * k as f64,
                        UnaryFn::SoftCap(c) => c as f64 * (*x / c as f64).tanh(),
                        UnaryFn::Cast(_) => *x,
                    }
                });
                put(a, dst, &x);
            }
            Op::Binary { dst, a: l, b, f: g } => {
                let mut x = get(a, l, l.rows.count(s));
                let y = get(a, b, b.rows.count(s));
                let n = y.len();
                x.iter_mut().enumerate().for_each(|(i, x)| {
                    let y = y[i % n];
                    *x = if *g == BinaryFn::Add { *x + y } else { *x * y }
                });
                put(a, dst, &x);
            }
            Op::Softmax { dst, src } => {
                let mut x = get(a, src, src.rows.count(s));
                for r in x.chunks_mut(src.cols) {
                    let m = r.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let t: f64 = r.iter().map(|x| (x - m).exp()).sum();
                    r.iter_mut().for_each(|x| *x = (*x - m).exp() / t);
                }
                put(a, dst, &x);
            }
            Op::Transpose { dst, src } => {
                let n = src.rows.count(s);
                let x = get(a, src, n);
                let v: Vec<f64> = (0..src.cols)
                    .flat_map(|c| {
                        let x = &x;
                        (0..n).map(move |r| x[r * src.cols + c])
                    })
                    .collect();
                put(a, dst, &v);
            }
        }
        let _ = f.kv.layout;
        Ok(())
    }
}
