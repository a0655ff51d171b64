// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// mostCalls is more than the number of any system call.
const mostCalls = 1024

// Calls counts the system calls of a process, all its threads, without slowing it down as strace does.
type Calls struct {
	counts  *ebpf.Map
	program *ebpf.Program
	at      link.Link
}

// CountCalls begins to count those of a process.
func CountCalls(pid int) (c *Calls, err error) {
	c = &Calls{}
	defer func() {
		if err != nil {
			c.Close()
			c, err = nil, fmt.Errorf("netnstest: count system calls: %w", err)
		}
	}()
	if c.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: mostCalls}); err != nil {
		return nil, err
	}
	// The context has the registers of the caller, and the number of the call.
	if c.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint,
		Instructions: asm.Instructions{
			asm.LoadMem(asm.R6, asm.R1, 8, asm.DWord),
			asm.FnGetCurrentPidTgid.Call(),
			asm.RSh.Imm(asm.R0, 32),
			asm.JNE.Imm(asm.R0, int32(pid), "end"),
			asm.StoreMem(asm.RFP, -4, asm.R6, asm.Word),
			asm.LoadMapPtr(asm.R1, c.counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
			asm.Return(),
		},
		License: "GPL", // of the helper functions
	}); err != nil {
		return nil, err
	}
	c.at, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: c.program})
	return c, err
}

// Each returns how often each system call was made until now, by its number.
func (c *Calls) Each() (map[int]uint64, error) {
	all := map[int]uint64{}
	var at ebpf.MapBatchCursor
	numbers, counts := make([]uint32, mostCalls), make([]uint64, mostCalls)
	// In one call, for a process that counts its own.
	n, err := c.counts.BatchLookup(&at, numbers, counts, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, fmt.Errorf("netnstest: count system calls: %w", err)
	}
	for i := range n {
		if counts[i] > 0 {
			all[int(numbers[i])] = counts[i]
		}
	}
	return all, nil
}

// Close ends the count.
func (c *Calls) Close() {
	if c.at != nil {
		c.at.Close()
	}
	if c.program != nil {
		c.program.Close()
	}
	if c.counts != nil {
		c.counts.Close()
	}
}
