//! The opcode forms that the decoder knows, written out from the manual's syntax lines: `{a,b}` is
//! one of these, an empty one may be left out.

use std::collections::BTreeSet;

const INTEGER: &[&str] = &[
    "{add,sub,min,max,div,rem,sad,mul.lo,mul.hi,mad.lo,mad.hi}.{u16,s16,u32,s32,u64,s64}",
    "{neg,abs}.{s16,s32,s64}",
    "{mul,mad}.wide.{u16,s16,u32,s32}",
    "{add,sub}.sat.s32",
    "{add,sub,addc,subc}.cc.{u32,s32,u64,s64}",
    "{addc,subc}.{u32,s32,u64,s64}",
    "{mad,madc}.{lo,hi}.cc.{u32,s32,u64,s64}",
    "madc.{lo,hi}.{u32,s32,u64,s64}",
    "{and,or,xor,not}.{pred,b16,b32,b64}",
    "shl.{b16,b32,b64}",
    "shr.{b16,b32,b64,u16,s16,u32,s32,u64,s64}",
    "{popc,clz,brev,bfi}.{b32,b64}",
    "{bfe,bfind,bfind.shiftamt}.{u32,s32,u64,s64}",
    "lop3.b32",
    "prmt.b32{,.f4e,.b4e,.rc8,.ecl,.ecr,.rc16}",
    "shf.{l,r}.{clamp,wrap}.b32",
    "bmsk.{clamp,wrap}.b32",
    "{dp4a,dp2a.lo,dp2a.hi}.{u32,s32}.{u32,s32}",
    "mov.{pred,b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}",
    "selp.{b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}",
    "slct.{b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}.{s32,f32}",
    "slct.ftz.{b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}.f32",
];

const COMPARISONS: &[&str] = &[
    "setp.{eq,ne}{,.and,.or,.xor}.{b16,b32,b64,s16,s32,s64}",
    "setp.{lt,le,gt,ge}{,.and,.or,.xor}.{s16,s32,s64}",
    "setp.{eq,ne,lt,le,gt,ge,lo,ls,hi,hs}{,.and,.or,.xor}.{u16,u32,u64}",
    "setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}.{f16,ftz.f16,bf16,f32,ftz.f32,f64}",
    "setp.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}.{f16x2,ftz.f16x2,bf16x2}",
    "set.{eq,ne}{,.and,.or,.xor}.{u32,s32,f32}.{b16,b32,b64,s16,s32,s64}",
    "set.{lt,le,gt,ge}{,.and,.or,.xor}.{u32,s32,f32}.{s16,s32,s64}",
    "set.{eq,ne,lt,le,gt,ge,lo,ls,hi,hs}{,.and,.or,.xor}.{u32,s32,f32}.{u16,u32,u64}",
    "set.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}.{u32,s32,f32}.f64",
    "set.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}{,.ftz}.{u32,s32,f32}.f32",
    "set.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}{,.ftz}.{u16,s16,u32,s32,f16}.f16",
    "set.{eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan}{,.and,.or,.xor}.{u16,s16,u32,s32,bf16}.bf16",
    "testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}",
];

const FLOATS: &[&str] = &[
    "{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}.f32",
    "{fma,mad}.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32",
    "{add,sub,mul}{,.rn}.f64",
    "{fma,mad}.rn.f64",
    "{div,rcp,sqrt}.rn{,.ftz}.f32",
    "{div,rcp,sqrt}.rn.f64",
    "div.{approx,full}{,.ftz}.f32",
    "{rcp,sqrt,rsqrt,ex2,lg2,sin,cos}.approx{,.ftz}.f32",
    "tanh.approx.f32",
    "rcp.approx.ftz.f64",
    "rsqrt.approx{,.ftz}.f64",
    "{neg,abs}{,.ftz}.f32",
    "{neg,abs,min,max}.f64",
    "{min,max}{,.ftz}{,.NaN}.f32",
    "copysign.{f32,f64}",
    "{add,sub,mul}{,.rn}{,.ftz}{,.sat}.{f16,f16x2}",
    "{add,sub,mul}{,.rn}.{bf16,bf16x2}",
    "fma.rn{,.ftz}{,.sat,.relu}.{f16,f16x2}",
    "fma.rn{,.relu}.{bf16,bf16x2}",
    "{neg,abs}{,.ftz}.{f16,f16x2}",
    "{neg,abs}.{bf16,bf16x2}",
    "{min,max}{,.ftz}{,.NaN}.{f16,f16x2}",
    "{min,max}{,.NaN}.{bf16,bf16x2}",
    "{ex2,tanh}.approx.{f16,f16x2}",
    "ex2.approx.ftz.{bf16,bf16x2}",
    "tanh.approx.{bf16,bf16x2}",
];

const CONVERSIONS: &[&str] = &[
    "cvt.{u8,s8,u16,s16,u32,s32,u64,s64}.{u8,s8,u16,s16,u32,s32,u64,s64}",
    // A clamp only where the target has not all the values.
    "cvt.sat.u8.{s8,u16,s16,u32,s32,u64,s64}",
    "cvt.sat.s8.{u8,u16,s16,u32,s32,u64,s64}",
    "cvt.sat.u16.{s8,s16,u32,s32,u64,s64}",
    "cvt.sat.s16.{u16,u32,s32,u64,s64}",
    "cvt.sat.u32.{s8,s16,s32,u64,s64}",
    "cvt.sat.s32.{u32,u64,s64}",
    "cvt.sat.u64.{s8,s16,s32,s64}",
    "cvt.sat.s64.u64",
    "cvt.{rn,rz,rm,rp}{,.sat}.{f16,f32}.{u8,s8,u16,s16,u32,s32,u64,s64}",
    "cvt.rn{,.sat}.f64.{u8,s8,u16,s16,u32,s32,u64,s64}",
    "cvt.{rn,rz,rm,rp}.bf16.{u8,s8,u16,s16,u32,s32,u64,s64}",
    "cvt.{rni,rzi,rmi,rpi}{,.sat}.{u8,s8,u16,s16,u32,s32,u64,s64}.{f16,f64}",
    "cvt.{rni,rzi,rmi,rpi}{,.ftz}{,.sat}.{u8,s8,u16,s16,u32,s32,u64,s64}.f32",
    "cvt.{rni,rzi,rmi,rpi}.{u8,s8,u16,s16,u32,s32,u64,s64}.bf16",
    "cvt.{rni,rzi,rmi,rpi}{,.sat}.{f16.f16,f64.f64}",
    "cvt.{rni,rzi,rmi,rpi}{,.ftz}{,.sat}.f32.f32",
    "cvt.ftz{,.sat}.f32.f32",
    "cvt{,.ftz}{,.sat}.{f32.f16,f64.f32}",
    "cvt{,.sat}.f64.f16",
    "cvt.{rn,rz,rm,rp}{,.ftz}{,.sat}.{f16.f32,f32.f64}",
    "cvt.{rn,rz,rm,rp}{,.sat}.f16.f64",
    "cvt.{rn,rz,rm,rp}.{bf16.f16,bf16.f32,bf16.f64,f16.bf16}",
    "cvt.{f32,f64}.bf16",
    "cvt.{rn,rz}{.relu,.satfinite}.{f16,bf16}.f32",
    "cvt.{rn,rz}{,.relu,.satfinite}.{f16x2,bf16x2}.f32",
    "cvt.rna{,.satfinite}.tf32.f32",
    "cvt.{rn,rz}{,.relu}.tf32.f32",
    "cvt.rn.satfinite{,.relu}.{e4m3x2,e5m2x2}.{f32,f16x2}",
    "cvt.rn{,.relu}.f16x2.{e4m3x2,e5m2x2}",
];

const MEMORY: &[&str] = &[
    "ld{,.global,.const,.shared,.local,.param}{,.v2}.{b8,u8,s8,b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}",
    "ld{,.global,.const,.shared,.local,.param}.v4.{b8,u8,s8,b16,u16,s16,b32,u32,s32,f32}",
    "st{,.global,.shared,.local}{,.v2}.{b8,u8,s8,b16,u16,s16,b32,u32,s32,f32,b64,u64,s64,f64}",
    "st{,.global,.shared,.local}.v4.{b8,u8,s8,b16,u16,s16,b32,u32,s32,f32}",
    "ld{.weak,.volatile}{,.global,.shared}.{u32,u64}",
    "ld.{relaxed,acquire}.{cta,gpu,sys}{,.global,.shared}.{u32,u64}",
    "st{.weak,.volatile}{,.global,.shared}.{u32,u64}",
    "st.{relaxed,release}.{cta,gpu,sys}{,.global,.shared}.{u32,u64}",
    "ld.global{.ca,.cg,.cs,.lu,.cv,.nc}.{u32,v4.u32,v2.u64}",
    "ld.global.L1::{evict_normal,evict_last,evict_first,evict_unchanged,no_allocate}.{u32,v4.u32,v2.u64}",
    "ld.global{,.nc}.L2::256B.{u32,v4.u32,v2.u64}",
    "ld.global.L2::{64B,128B}.{u32,v4.u32,v2.u64}",
    "ld.global.nc.L1::{no_allocate,evict_last,no_allocate.L2::128B}.{u32,v4.u32,v2.u64}",
    "st.global{.wb,.cg,.cs,.wt,.L1::evict_last,.L1::no_allocate}.{u32,v4.u32,v2.u64}",
    "ldu.global.u32",
    "st.param.b32",
    "{ld,st}.shared::cluster.u32",
    "prefetch.{global.L1,global.L2,L1}",
    "prefetchu.L1",
    "createpolicy.fractional.L2::evict_last.b64",
    "applypriority.global.L2::evict_normal",
    "discard.global.L2",
    "cvta{,.to}.{global,shared,shared::cta,local,const}.u64",
    "cvta.param.u64",
    "isspacep.{global,shared,shared::cta,local,const}",
    "mapa{.shared::cluster.u32,.shared::cluster.u64,.u64}",
    "getctarank{.shared::cluster.u32,.u64}",
    "{atom,red}{,.global,.shared}.{add,min,max}.{u32,s32,u64}",
    "{atom,red}{,.global,.shared}.{min,max}.s64",
    "{atom,red}{,.global,.shared}.{and,or,xor}.{b32,b64}",
    "{atom,red}{,.global,.shared}.{inc,dec}.u32",
    "{atom,red}{,.global,.shared}.add.{f32,f64,noftz.f16,noftz.f16x2,noftz.bf16,noftz.bf16x2}",
    "atom{,.global,.shared}.{exch.b32,exch.b64,cas.b16,cas.b32,cas.b64}",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.{add,min,max}.{u32,s32,u64}",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.{min,max}.s64",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.{and,or,xor,exch,cas}.{b32,b64}",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.{inc,dec}.u32",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.cas.b16",
    "atom{.ORDER.global,.relaxed.cta.shared,.gpu.global}.add.{f32,f64,noftz.f16,noftz.f16x2,noftz.bf16,noftz.bf16x2}",
    "red{.WEAKER.global,.relaxed.cta.shared}.{add,min,max}.{u32,s32,u64}",
    "red{.WEAKER.global,.relaxed.cta.shared}.{min,max}.s64",
    "red{.WEAKER.global,.relaxed.cta.shared}.{and,or,xor}.{b32,b64}",
    "red{.WEAKER.global,.relaxed.cta.shared}.{inc,dec}.u32",
    "red{.WEAKER.global,.relaxed.cta.shared}.add.{f32,f64,noftz.f16,noftz.f16x2,noftz.bf16,noftz.bf16x2}",
    "{atom,red}.shared::cluster.add.u32",
    "red.global.add.{v2,v4}.f32",
];

const WARPS: &[&str] = &[
    "shfl.sync.{up,down,bfly,idx}.b32",
    "vote.sync.{all.pred,any.pred,uni.pred,ballot.b32}",
    "match.{any,all}.sync.{b32,b64}",
    "redux.sync.{add,min,max}.{u32,s32}",
    "redux.sync.{and,or,xor}.b32",
    "activemask.b32",
    "elect.sync",
    "mma.sync.aligned.m16n8k{8,16}.row.col.{f32.f16.f16.f32,f16.f16.f16.f16,f32.bf16.bf16.f32}",
    "mma.sync.aligned.m16n8k{4,8}.row.col.f32.tf32.tf32.f32",
    "mma.sync.aligned.m16n8k{16,32}.row.col{,.satfinite}.s32.{s8,u8}.{s8,u8}.s32",
    "mma.sync.aligned.m16n8k32.row.col.f32.{e4m3,e5m2}.{e4m3,e5m2}.f32",
    "ldmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.{shared,shared::cta}.b16",
    "stmatrix.sync.aligned.m8n8.{x1,x2,x4}{,.trans}.shared.b16",
    "wgmma.{fence,commit_group,wait_group}.sync.aligned",
    "wgmma.mma_async.sync.aligned.m64nEIGHTSk16.{f32.f16.f16,f16.f16.f16,f32.bf16.bf16}",
    "wgmma.mma_async.sync.aligned.m64nEIGHTSk8.f32.tf32.tf32",
    "wgmma.mma_async.sync.aligned.m64nEIGHTSk32.f32.{e4m3.e4m3,e5m2.e5m2}",
    "wgmma.mma_async.sync.aligned.m64nSIXTEENSk32.s32.{s8.s8,u8.u8}",
];

const ASYNCHRONOUS: &[&str] = &[
    "cp.async.{ca,cg}.{shared,shared::cta}.global{,.L2::64B,.L2::128B,.L2::256B,.L2::cache_hint}",
    "cp.async.{commit_group,wait_group,wait_all}",
    "cp.async.mbarrier.arrive{,.noinc}.{shared,shared::cta}.b64",
    "mbarrier.{init,inval,arrive,arrive_drop,test_wait,test_wait.parity,try_wait,try_wait.parity}.{shared,shared::cta}.b64",
    "mbarrier.pending_count.b64",
    "mbarrier.{arrive,arrive_drop}{,.expect_tx}.release.{cta,cluster}.shared::cta.b64",
    "mbarrier.{arrive,arrive_drop}.expect_tx.shared::cta.b64",
    "mbarrier.arrive.release.cluster.shared::cluster.b64",
    "mbarrier.{test_wait,try_wait}.parity.acquire.{cta,cluster}.shared::cta.b64",
    "mbarrier.{expect_tx,complete_tx}.relaxed.cta.shared::cta.b64",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{,.L2::cache_hint}",
    "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
    "cp.async.bulk.global.shared::cta.bulk_group{,.L2::cache_hint}",
    "cp.async.bulk.{commit_group,wait_group,wait_group.read}",
    "cp.async.bulk.prefetch.L2.global{,.L2::cache_hint}",
    "cp.async.bulk.tensor.{1,2,3,4,5}d.shared::cluster.global{,.tile}.mbarrier::complete_tx::bytes",
    "cp.async.bulk.tensor.{1,2,3,4,5}d.global.shared::cta.bulk_group",
    "cp.async.bulk.prefetch.tensor.{2,3,4,5}d.L2.global",
];

const FLOW: &[&str] = &[
    "bra{,.uni}",
    "brx.idx{,.uni}",
    "call{,.uni}",
    "ret{,.uni}",
    "exit",
    "{bar,bar.cta}.{sync,arrive}",
    "{barrier,barrier.cta}.{sync,arrive}{,.aligned}",
    "{bar,bar.cta}.red.{popc.u32,and.pred,or.pred}",
    "{barrier,barrier.cta}.red.{popc,and,or}{,.aligned}.TYPE",
    "bar.warp.sync",
    "barrier.cluster.arrive{,.release}{,.aligned}",
    "barrier.cluster.arrive.relaxed",
    "barrier.cluster.wait{,.acquire}{,.aligned}",
    "membar.{cta,gl,sys}",
    "fence.{sc,acq_rel}.{cta,cluster,gpu,sys}",
    "fence.proxy.{alias,async,async.global,async.shared::cta,async.shared::cluster}",
    "fence.mbarrier_init.release.cluster",
    "griddepcontrol.{wait,launch_dependents}",
    "setmaxnreg.{inc,dec}.sync.aligned.u32",
    "nanosleep.u32",
    "pmevent",
    "mov.u32.%{clock,globaltimer_lo}",
    "mov.u64.%{clock64,globaltimer}",
    "%{tid,ntid,ctaid,nctaid,clusterid,nclusterid,cluster_ctaid,cluster_nctaid}.{x,y,z}",
    "%{cluster_ctarank,cluster_nctarank,laneid,warpid,nwarpid,smid,nsmid,gridid,dynamic_smem_size,total_smem_size}",
    "%lanemask_{eq,lt,le,gt,ge}",
];

/// Those that stop a kernel: `basics.rs` has tests of `trap`.
pub const WORDS_WITHOUT_ROW: [&str; 2] = ["brkpt", "trap"];

/// Words of the decoder's own that it names for refusal: no form of theirs is known.
const REFUSED: [&str; 3] = ["mul24", "mad24", "cnot"];

pub fn all() -> BTreeSet<String> {
    let lists = [INTEGER, COMPARISONS, FLOATS, CONVERSIONS, MEMORY, WARPS, ASYNCHRONOUS, FLOW];
    lists.concat().into_iter().flat_map(|pattern| expand(&with_names(pattern))).collect()
}

/// Choices that have a name.
fn with_names(pattern: &str) -> String {
    let multiples = |step: usize, from: usize| {
        let sizes: Vec<_> = (from..=256).step_by(step).map(|n| n.to_string()).collect();
        sizes.join(",")
    };
    pattern
        .replace(".ORDER", ".{relaxed,acquire,release,acq_rel}.{cta,gpu,sys}")
        .replace(".WEAKER", ".{relaxed,release}.{cta,gpu,sys}")
        .replace("EIGHTS", &format!("{{{}}}", multiples(8, 8)))
        .replace("SIXTEENS", &format!("{{8,24,{}}}", multiples(16, 16)))
}

/// All texts of a pattern; choices may stand in choices.
fn expand(pattern: &str) -> Vec<String> {
    let Some(open) = pattern.find('{') else {
        // The type of a reduction follows from what it is.
        let ty = if pattern.contains(".popc") { "u32" } else { "pred" };
        return vec![pattern.replace("TYPE", ty)];
    };
    let (mut depth, mut start, mut choices, mut close) = (0, open + 1, Vec::new(), open);
    for (at, c) in pattern.char_indices().skip(open) {
        match c {
            '{' => depth += 1,
            ',' if depth == 1 => {
                choices.push(&pattern[start..at]);
                start = at + 1;
            }
            '}' if depth == 1 => {
                choices.push(&pattern[start..at]);
                close = at;
                break;
            }
            '}' => depth -= 1,
            _ => {}
        }
    }
    let (before, after) = (&pattern[..open], &pattern[close + 1..]);
    choices.iter().flat_map(|choice| expand(&format!("{before}{choice}{after}"))).collect()
}

/// First words of opcodes in the decoder's own choice between them.
pub fn decoded_words() -> BTreeSet<&'static str> {
    let text = include_str!("../../src/decode/simple.rs");
    let start = text.find("match op.parts[0] {").expect("the decoder's choice");
    let end = start + text[start..].find("_ => Err").expect("its end");
    let mut words = BTreeSet::new();
    for line in text[start..end].lines() {
        let names = line.split("=>").next().unwrap_or_default().split(" if ").next().unwrap_or_default();
        words.extend(names.split('"').skip(1).step_by(2).filter(|word| !REFUSED.contains(word)));
    }
    words
}

/// Opcodes of the committed kernels.
pub fn of_kernels() -> BTreeSet<String> {
    let texts = [include_str!("../ptx/llm.sm_80.ptx"), include_str!("../ptx/hopper.sm_90a.ptx")];
    let mut found = BTreeSet::new();
    for statement in texts.iter().flat_map(|text| text.split([';', '{', '}'])) {
        // The opcode is the first word of the last line, after a guard.
        let line = statement.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let words = line.split_whitespace().skip_while(|word| word.starts_with('@'));
        found.extend(words.take(1).filter(|word| is_opcode(word)).map(String::from));
    }
    found
}

fn is_opcode(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_lowercase())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "._:".contains(c))
        && word.contains('.')
}
