//! The part of libibverbs' ABI that the link uses: structures, constants, and signatures of functions in the context's table.
//!
//! Written by hand after rdma-core's <infiniband/verbs.h>, whose layout has been stable since IBVERBS_1.1. The test below compiles a C
//! program against the installed header and compares sizes and offsets. Names are the header's without `ibv_`. Only structures that the
//! library allocates omit fields, at their end.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// `struct ibv_device`: only its address is used.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}

/// `struct ibv_context_ops`: the functions that the library does not export as symbols. Unused ones are plain addresses.
#[repr(C)]
pub struct ContextOps {
    pub before_alloc_mw: [*mut c_void; 7],
    pub alloc_mw: Option<unsafe extern "C" fn(*mut ProtectionDomain, c_uint) -> *mut MemoryWindow>,
    pub bind_mw: *mut c_void,
    pub dealloc_mw: Option<unsafe extern "C" fn(*mut MemoryWindow) -> c_int>,
    pub before_poll_cq: *mut c_void,
    pub poll_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int, *mut WorkCompletion) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut CompletionQueue, c_int) -> c_int>,
    pub before_post_send: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut QueuePair, *mut SendRequest, *mut *mut SendRequest) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut QueuePair, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int>,
    pub after_post_recv: [*mut c_void; 5],
}

/// `struct ibv_context`, the fields that are read.
#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
}

/// `struct ibv_pd`.
#[repr(C)]
pub struct ProtectionDomain {
    pub context: *mut Context,
    pub handle: u32,
}

/// `struct ibv_mr`.
#[repr(C)]
pub struct MemoryRegion {
    pub context: *mut Context,
    pub pd: *mut ProtectionDomain,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// `struct ibv_mw`.
#[repr(C)]
pub struct MemoryWindow {
    pub context: *mut Context,
    pub pd: *mut ProtectionDomain,
    pub rkey: u32,
    pub handle: u32,
    pub mw_type: c_uint,
}

/// The member `bind_mw` of `struct ibv_send_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BindWindow {
    pub mw: *mut MemoryWindow,
    /// The window's new key.
    pub rkey: u32,
    pub mr: *mut MemoryRegion,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// `struct ibv_comp_channel`.
#[repr(C)]
pub struct CompletionChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// `struct ibv_cq`, the fields that are read.
#[repr(C)]
pub struct CompletionQueue {
    pub context: *mut Context,
    pub channel: *mut CompletionChannel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
}

/// `struct ibv_qp`, as far as it is read.
#[repr(C)]
pub struct QueuePair {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut ProtectionDomain,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: c_uint,
    pub qp_type: c_uint,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QueuePairCapacity {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
pub struct QueuePairInit {
    pub qp_context: *mut c_void,
    pub send_cq: *mut CompletionQueue,
    pub recv_cq: *mut CompletionQueue,
    pub srq: *mut c_void,
    pub cap: QueuePairCapacity,
    pub qp_type: c_uint,
    pub sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GlobalRoute {
    /// `union ibv_gid`: 16 bytes in network order, 8-aligned.
    pub dgid: Gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}

/// `union ibv_gid`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Gid(pub [u8; 16]);

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AddressVector {
    pub grh: GlobalRoute,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QueuePairAttributes {
    pub qp_state: c_uint,
    pub cur_qp_state: c_uint,
    pub path_mtu: c_uint,
    pub path_mig_state: c_uint,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QueuePairCapacity,
    pub ah_attr: AddressVector,
    pub alt_ah_attr: AddressVector,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GatherEntry {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

/// `struct ibv_send_wr`, with the largest member of each union; the names are those of the rdma member.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SendRequest {
    pub wr_id: u64,
    pub next: *mut SendRequest,
    pub sg_list: *mut GatherEntry,
    pub num_sge: c_int,
    pub opcode: c_uint,
    pub send_flags: c_uint,
    /// In network byte order; for an invalidation the key, in this host's.
    pub imm_data: u32,
    pub remote_addr: u64,
    pub rkey: u32,
    pub rest_of_wr: [u64; 2],
    pub xrc_remote_srqn: u32,
    pub bind_mw: BindWindow,
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ReceiveRequest {
    pub wr_id: u64,
    pub next: *mut ReceiveRequest,
    pub sg_list: *mut GatherEntry,
    pub num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct WorkCompletion {
    pub wr_id: u64,
    pub status: c_uint,
    pub opcode: c_uint,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// In network byte order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

/// `struct ibv_port_attr`: the exported function fills the fields of IBVERBS_1.1, which end before `port_cap_flags2`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct PortAttributes {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
    /// Room for fields added later.
    pub spare: [u32; 4],
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct DeviceAttributes {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub rest: [c_int; 20],
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}

/// `IBV_ACCESS_LOCAL_WRITE`.
pub const ACCESS_LOCAL_WRITE: c_int = 1;
/// `IBV_ACCESS_REMOTE_WRITE`.
pub const ACCESS_REMOTE_WRITE: c_int = 2;
/// `IBV_ACCESS_MW_BIND`: windows may be bound to the region.
pub const ACCESS_MW_BIND: c_int = 1 << 4;
/// `IBV_MW_TYPE_2`: a window that a queue pair's own requests bind and invalidate.
pub const MW_TYPE_2: c_uint = 2;
/// `IBV_DEVICE_MEM_WINDOW_TYPE_2B`: such a window belongs to one queue pair.
pub const DEVICE_MEM_WINDOW_TYPE_2B: c_uint = 1 << 24;
/// `IBV_QPT_RC`.
pub const QPT_RC: c_uint = 2;
/// `IBV_QPS_INIT`.
pub const QPS_INIT: c_uint = 1;
/// `IBV_QPS_RTR`: ready to receive.
pub const QPS_RTR: c_uint = 2;
/// `IBV_QPS_RTS`: ready to send.
pub const QPS_RTS: c_uint = 3;
/// `IBV_QPS_ERR`.
pub const QPS_ERR: c_uint = 6;
/// `IBV_WR_RDMA_WRITE`.
pub const WR_RDMA_WRITE: c_uint = 0;
/// `IBV_WR_RDMA_WRITE_WITH_IMM`.
pub const WR_RDMA_WRITE_WITH_IMM: c_uint = 1;
/// `IBV_WR_LOCAL_INV`.
pub const WR_LOCAL_INV: c_uint = 7;
/// `IBV_WR_BIND_MW`.
pub const WR_BIND_MW: c_uint = 8;
/// `IBV_SEND_SIGNALED`.
pub const SEND_SIGNALED: c_uint = 1 << 1;
/// `IBV_SEND_SOLICITED`.
pub const SEND_SOLICITED: c_uint = 1 << 2;
/// `IBV_SEND_INLINE`.
pub const SEND_INLINE: c_uint = 1 << 3;
/// `IBV_PORT_ACTIVE`.
pub const PORT_ACTIVE: c_uint = 4;
/// `IBV_LINK_LAYER_INFINIBAND`.
pub const LINK_LAYER_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`.
pub const LINK_LAYER_ETHERNET: u8 = 2;

/// `enum ibv_qp_attr_mask`, the bits in use.
pub mod attribute {
    use std::ffi::c_int;

    pub const STATE: c_int = 1;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    /// The C expression of each field's offset, with our offset.
    macro_rules! offsets {
        ($($c_type:literal, $type:ty: $($c_field:literal = $field:ident),*;)*) => {
            vec![$($((format!("offsetof({}, {})", $c_type, $c_field), offset_of!($type, $field)),)*)*]
        };
    }

    fn ours() -> Vec<(String, usize)> {
        let mut all = offsets! {
            "struct ibv_context", Context: "ops" = ops, "cmd_fd" = cmd_fd, "async_fd" = async_fd;
            "struct ibv_context_ops", ContextOps: "alloc_mw" = alloc_mw, "dealloc_mw" = dealloc_mw, "poll_cq" = poll_cq, "req_notify_cq" = req_notify_cq,
                "post_send" = post_send, "post_recv" = post_recv;
            "struct ibv_mr", MemoryRegion: "lkey" = lkey, "rkey" = rkey;
            "struct ibv_comp_channel", CompletionChannel: "fd" = fd;
            "struct ibv_cq", CompletionQueue: "cqe" = cqe;
            "struct ibv_qp", QueuePair: "qp_num" = qp_num, "state" = state;
            "struct ibv_qp_init_attr", QueuePairInit: "send_cq" = send_cq, "recv_cq" = recv_cq, "cap" = cap, "qp_type" = qp_type,
                "sq_sig_all" = sq_sig_all;
            "struct ibv_qp_attr", QueuePairAttributes: "path_mtu" = path_mtu, "rq_psn" = rq_psn, "dest_qp_num" = dest_qp_num,
                "qp_access_flags" = qp_access_flags, "cap" = cap, "ah_attr" = ah_attr, "alt_ah_attr" = alt_ah_attr,
                "max_rd_atomic" = max_rd_atomic, "min_rnr_timer" = min_rnr_timer, "port_num" = port_num, "timeout" = timeout,
                "retry_cnt" = retry_cnt, "rnr_retry" = rnr_retry, "rate_limit" = rate_limit;
            "struct ibv_ah_attr", AddressVector: "grh" = grh, "dlid" = dlid, "is_global" = is_global, "port_num" = port_num;
            "struct ibv_global_route", GlobalRoute: "dgid" = dgid, "sgid_index" = sgid_index, "hop_limit" = hop_limit;
            "struct ibv_sge", GatherEntry: "addr" = addr, "length" = length, "lkey" = lkey;
            "struct ibv_send_wr", SendRequest: "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode,
                "send_flags" = send_flags, "imm_data" = imm_data, "wr.rdma.remote_addr" = remote_addr, "wr.rdma.rkey" = rkey,
                "invalidate_rkey" = imm_data, "qp_type" = xrc_remote_srqn, "bind_mw" = bind_mw;
            "struct ibv_mw", MemoryWindow: "rkey" = rkey, "type" = mw_type;
            "struct ibv_recv_wr", ReceiveRequest: "next" = next, "sg_list" = sg_list, "num_sge" = num_sge;
            "struct ibv_wc", WorkCompletion: "status" = status, "opcode" = opcode, "byte_len" = byte_len, "imm_data" = imm_data,
                "wc_flags" = wc_flags, "dlid_path_bits" = dlid_path_bits;
            "struct ibv_port_attr", PortAttributes: "active_mtu" = active_mtu, "gid_tbl_len" = gid_tbl_len, "lid" = lid,
                "link_layer" = link_layer, "port_cap_flags2" = port_cap_flags2;
            "struct ibv_device_attr", DeviceAttributes: "max_qp_wr" = max_qp_wr, "max_sge" = max_sge, "max_cqe" = max_cqe,
                "max_pkeys" = max_pkeys, "phys_port_cnt" = phys_port_cnt;
        };
        all.extend([
            ("sizeof(struct ibv_context_ops)".to_owned(), size_of::<ContextOps>()),
            ("sizeof(struct ibv_qp_init_attr)".to_owned(), size_of::<QueuePairInit>()),
            ("sizeof(struct ibv_qp_attr)".to_owned(), size_of::<QueuePairAttributes>()),
            ("sizeof(struct ibv_send_wr)".to_owned(), size_of::<SendRequest>()),
            ("sizeof(struct ibv_recv_wr)".to_owned(), size_of::<ReceiveRequest>()),
            ("sizeof(struct ibv_wc)".to_owned(), size_of::<WorkCompletion>()),
            ("sizeof(struct ibv_sge)".to_owned(), size_of::<GatherEntry>()),
            ("sizeof(union ibv_gid)".to_owned(), size_of::<Gid>()),
            ("sizeof(struct ibv_device_attr)".to_owned(), size_of::<DeviceAttributes>()),
            ("IBV_QPT_RC".to_owned(), QPT_RC as usize),
            ("IBV_QPS_ERR".to_owned(), QPS_ERR as usize),
            ("IBV_WR_RDMA_WRITE_WITH_IMM".to_owned(), WR_RDMA_WRITE_WITH_IMM as usize),
            ("offsetof(struct ibv_send_wr, bind_mw.bind_info.mw_access_flags)".to_owned(), {
                offset_of!(SendRequest, bind_mw) + offset_of!(BindWindow, mw_access_flags)
            }),
            ("IBV_WR_LOCAL_INV".to_owned(), WR_LOCAL_INV as usize),
            ("IBV_WR_BIND_MW".to_owned(), WR_BIND_MW as usize),
            ("IBV_MW_TYPE_2".to_owned(), MW_TYPE_2 as usize),
            ("IBV_ACCESS_MW_BIND".to_owned(), ACCESS_MW_BIND as usize),
            ("IBV_DEVICE_MEM_WINDOW_TYPE_2B".to_owned(), DEVICE_MEM_WINDOW_TYPE_2B as usize),
            ("IBV_SEND_SOLICITED".to_owned(), SEND_SOLICITED as usize),
            ("IBV_SEND_INLINE".to_owned(), SEND_INLINE as usize),
            ("IBV_ACCESS_REMOTE_WRITE".to_owned(), ACCESS_REMOTE_WRITE as usize),
            ("IBV_PORT_ACTIVE".to_owned(), PORT_ACTIVE as usize),
            ("IBV_LINK_LAYER_ETHERNET".to_owned(), LINK_LAYER_ETHERNET as usize),
            ("IBV_QP_RNR_RETRY".to_owned(), attribute::RNR_RETRY as usize),
            ("IBV_QP_DEST_QPN".to_owned(), attribute::DEST_QPN as usize),
            ("IBV_QP_MAX_DEST_RD_ATOMIC".to_owned(), attribute::MAX_DEST_RD_ATOMIC as usize),
        ]);
        all
    }

    #[test]
    fn the_layout_matches_the_installed_header() {
        if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
            println!("skipped: no libibverbs-dev to compare the layout with");
            return;
        }
        let ours = ours();
        let lines: String = ours.iter().map(|(what, _)| format!("printf(\"%zu\\n\", (size_t)({what}));\n")).collect();
        let source = format!(
            "#include <stddef.h>\n#include <stdio.h>\n#include <infiniband/verbs.h>\nint main(void) {{\n{lines}}}\n"
        );
        let folder = std::env::temp_dir().join(format!("rgaps-verbs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("layout.c"), source).unwrap();
        let compiled = Command::new("cc").args(["layout.c", "-o", "layout"]).current_dir(&folder).status().unwrap();
        assert!(compiled.success());
        let output = Command::new(folder.join("layout")).output().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let theirs: Vec<usize> =
            String::from_utf8(output.stdout).unwrap().lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(theirs.len(), ours.len());
        for ((what, ours), theirs) in ours.iter().zip(theirs) {
            assert_eq!(*ours, theirs, "{what}");
        }
    }
}
