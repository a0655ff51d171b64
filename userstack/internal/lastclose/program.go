// SPDX-License-Identifier: Apache-2.0

package lastclose

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// hooks are the functions of the kernel that give up a reference to a file. Their first
// argument is the file. Not every kernel has all of them.
var hooks = []string{"fput", "__fput_sync", "fput_close", "fput_close_sync"}

// layout is where the kernel has what the program reads. The offsets are in bytes.
type layout struct {
	inode int16 // struct file: pointer to its inode
	// refs is the offset of the number of references in struct file, a signed 64-bit
	// number. last is its value for one reference: since Linux 6.13, the number counts
	// from 0 (file_ref_t).
	refs int16
	last int32

	number int16 // struct inode: its number, 64 bits
	mode   int16 // struct inode: its type, 16 bits

	sock  int16 // struct socket: pointer to its struct sock
	queue int16 // struct sock: the number of buffers in its receive queue, 32 bits
}

// kernelLayout finds the layout in the BTF of the kernel.
func kernelLayout(spec *btf.Spec) (l layout, err error) {
	var file, inode, socket, sock, queue *btf.Struct
	if err := errors.Join(
		spec.TypeByName("file", &file), spec.TypeByName("inode", &inode), spec.TypeByName("socket", &socket),
		spec.TypeByName("sock", &sock), spec.TypeByName("sk_buff_head", &queue),
	); err != nil {
		return l, err
	}
	var length int16
	for _, f := range []struct {
		in   *btf.Struct
		name string
		to   *int16
	}{
		{file, "f_inode", &l.inode},
		{inode, "i_ino", &l.number},
		{inode, "i_mode", &l.mode},
		{socket, "sk", &l.sock},
		{sock, "sk_receive_queue", &l.queue},
		{queue, "qlen", &length},
	} {
		if *f.to, err = offsetOf(f.in, f.name); err != nil {
			return l, err
		}
	}
	l.queue += length
	if l.refs, err = offsetOf(file, "f_ref"); err == nil {
		return l, nil
	}
	l.last = 1
	l.refs, err = offsetOf(file, "f_count")
	return l, err
}

// offsetOf returns the offset of a member in bytes. It also looks into members without a
// name.
func offsetOf(s btf.Type, name string) (int16, error) {
	off, ok := find(s, name)
	if !ok || off > 0x7fff {
		return 0, fmt.Errorf("BTF: %s has no %s", s.TypeName(), name)
	}
	return int16(off), nil
}

func find(t btf.Type, name string) (uint32, bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		if m.Name == name {
			return m.Offset.Bytes(), true
		}
		if m.Name == "" {
			if off, ok := find(m.Type, name); ok {
				return m.Offset.Bytes() + off, true
			}
		}
	}
	return 0, false
}

// Names of the maps in instructions.
const (
	mapFiles   = "files"
	mapReports = "reports"
)

// Offsets in a value of the map of files: entry.
const (
	entryFile     = 0
	entryReported = 8
	entrySize     = 16
)

// Stack slots, as offsets in bytes from the frame pointer: the number of the inode, the
// length of the receive queue, and struct bpf_pidns_info. The first two are a report.
const (
	slotQueue  = -8
	slotNumber = -16
	slotTask   = -24
)

// license is what the kernel is told of the program: it lets only programs that are also under
// the GPL read its structures. So the instructions of program, and nothing else of smcr, may
// be used under the MIT license or the GNU General Public License, version 2, too.
const license = "Dual MIT/GPL"

// process identifies this process for an eBPF program: its ID, and the PID namespace in
// which it has this ID.
type process struct {
	id             uint32
	dev, namespace uint64
}

// program returns the instructions of the program at the exit of a hook. It is for one
// process.
//
//	file = the first argument
//	if it is not a socket, or the number of its inode is not in the map: out
//	if the entry has no address, and this is a call of the process: take the address
//	if the entry has another address: out
//	if there are other references, or it is reported already: out
//	report the number, and whether the socket has data that was not read
func program(l layout, p process) asm.Instructions {
	const (
		file   = asm.R6
		inode  = asm.R7
		entry  = asm.R8
		out    = "out"
		counts = "counts"
		report = "report"
	)
	return asm.Instructions{
		asm.LoadMem(file, asm.R1, 0, asm.DWord),
		asm.LoadMem(inode, file, l.inode, asm.DWord),
		asm.LoadMem(asm.R1, inode, l.mode, asm.Half),
		asm.And.Imm(asm.R1, unix.S_IFMT),
		asm.JNE.Imm(asm.R1, unix.S_IFSOCK, out),
		asm.LoadMem(asm.R1, inode, l.number, asm.DWord),
		asm.StoreMem(asm.RFP, slotNumber, asm.R1, asm.DWord),
		asm.LoadMapPtr(asm.R1, 0).WithReference(mapFiles),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotNumber),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, out),
		asm.Mov.Reg(entry, asm.R0),
		asm.LoadMem(asm.R1, entry, entryFile, asm.DWord),
		asm.JEq.Reg(asm.R1, file, counts),
		asm.JNE.Imm(asm.R1, 0, out),

		asm.Mov.Imm(asm.R1, 0),
		asm.StoreMem(asm.RFP, slotTask, asm.R1, asm.DWord),
		asm.LoadImm(asm.R1, int64(p.dev), asm.DWord),
		asm.LoadImm(asm.R2, int64(p.namespace), asm.DWord),
		asm.Mov.Reg(asm.R3, asm.RFP),
		asm.Add.Imm(asm.R3, slotTask),
		asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(),
		asm.JNE.Imm(asm.R0, 0, out),
		asm.LoadMem(asm.R1, asm.RFP, slotTask+4, asm.Word),
		asm.LoadImm(asm.R2, int64(p.id), asm.DWord),
		asm.JNE.Reg(asm.R1, asm.R2, out),
		asm.StoreMem(entry, entryFile, file, asm.DWord),

		asm.LoadMem(asm.R1, file, l.refs, asm.DWord).WithSymbol(counts),
		asm.JSGT.Imm(asm.R1, l.last, out),
		asm.Mov.Imm(asm.R1, 1),
		fetchOr(entry, asm.R1, entryReported),
		asm.JNE.Imm(asm.R1, 0, out),
		asm.Mov.Reg(asm.R1, file),
		asm.FnSockFromFile.Call(),
		asm.Mov.Imm(asm.R1, 0),
		asm.JEq.Imm(asm.R0, 0, report),
		asm.LoadMem(asm.R1, asm.R0, l.sock, asm.DWord),
		asm.LoadMem(asm.R1, asm.R1, l.queue, asm.Word),
		asm.StoreMem(asm.RFP, slotQueue, asm.R1, asm.DWord).WithSymbol(report),
		asm.LoadMapPtr(asm.R1, 0).WithReference(mapReports),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, slotNumber),
		asm.Mov.Imm(asm.R3, reportSize-recordHeader),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),

		asm.Mov.Imm(asm.R0, 0).WithSymbol(out),
		asm.Return(),
	}
}

// fetchOr sets the bits of src in a 64-bit value in memory, and src to the value before.
func fetchOr(dst, src asm.Register, offset int16) asm.Instruction {
	ins := asm.FetchOr.Mem(dst, src, asm.DWord, offset)
	// The operation is in the constant. Version 0.22 of the assembler encodes the constant
	// before it puts the operation there, which would be an addition without a result.
	ins.Constant = int64(asm.FetchOr >> 8)
	return ins
}

// encodeEntry returns an entry without an address that is not reported.
func encodeEntry() []byte { return make([]byte, entrySize) }
