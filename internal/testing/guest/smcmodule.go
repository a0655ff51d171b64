// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// SMCOptions are differences between the SMC of a guest's kernel and Debian's. The code
// of the SMC module is changed when it is loaded, and nothing else.
type SMCOptions struct {
	// Version1 makes the kernel use version 1 of SMC-R over soft-RoCE. Soft-RoCE has only
	// RoCEv2 GIDs, but Linux requires RoCEv1 GIDs for version 1. With this option the
	// kernel uses the RoCEv2 GID of index 0, which is link-local. The messages are those
	// of version 1; the packets are those of soft-RoCE, UDP over IPv6. If both sides have
	// an enterprise ID, they use version 2, as without this option.
	Version1 bool

	// Idle, unless it is 0, is how long a link group without connections exists if the
	// kernel is its server. If the kernel is the client, [IdleClient] is added. It is a
	// multiple of 4 ms, one tick. Linux has 10 minutes.
	Idle time.Duration
}

// IdleClient is how much longer a link group exists if the kernel is the client and
// [SMCOptions] has an Idle. In Linux it is 10 s, for the same reason: the server should
// end the link group.
const IdleClient = time.Second

// LoadChangedSMC is LoadSMC for a kernel whose SMC has these options. It fails if the
// places to change in the module are not unique.
func (g *Guest) LoadChangedSMC(ctx context.Context, options SMCOptions) error {
	if options == (SMCOptions{}) {
		return g.LoadSMC(ctx)
	}
	module, err := g.kernel.module(ctx, "smc")
	if err != nil {
		return err
	}
	if module, err = changeSMC(module, options); err != nil {
		return fmt.Errorf("guest: kernel %s: %w", g.kernel.Version, err)
	}
	file := filepath.Join(g.dir, "smc-changed.ko")
	if err := os.WriteFile(file, module, 0o644); err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	name, err := g.Push(file)
	if err = errors.Join(err, os.Remove(file)); err != nil {
		return err
	}
	return g.all(ctx, []string{"modprobe", "rdma_rxe"}, []string{"insmod", name}, []string{"modprobe", "smc_diag"})
}

// module returns the ELF file of one of the kernel's modules.
func (k Kernel) module(ctx context.Context, name string) ([]byte, error) {
	order, err := moduleOrder(k, []string{name})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(k.modules(), order[len(order)-1])
	if filepath.Ext(file) == ".xz" {
		if err := needPrograms("xz"); err != nil {
			return nil, unavailable("%w", err)
		}
		out, err := command(ctx, filepath.Dir(file), "xz", "-dc", file)
		if err != nil {
			return nil, fmt.Errorf("guest: %w", err)
		}
		return []byte(out), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("guest: %w", err)
	}
	return b, nil
}

// changeSMC returns the module of SMC with the options. It removes the signature, which
// is not valid any more: an unsigned module only taints the kernel.
func changeSMC(module []byte, options SMCOptions) ([]byte, error) {
	module, err := unsigned(module)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(module))
	if err != nil {
		return nil, fmt.Errorf("module smc: %w", err)
	}
	defer f.Close()
	if f.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("module smc is of %s, not of %s", f.Machine, elf.EM_X86_64)
	}
	if options.Version1 {
		if err := takeRoCEv2(f, module); err != nil {
			return nil, err
		}
	}
	if options.Idle != 0 {
		if err := shortenIdle(f, module, options.Idle); err != nil {
			return nil, err
		}
	}
	return module, nil
}

// The function that chooses a GID, and the types of GID that it compares with:
// RoCE for version 1, RoCE with UDP encapsulation for version 2 (ib_gid_type).
const (
	gidFunction = "smc_ib_determine_gid"
	gidRoCEv1   = 1
	gidRoCEv2   = 2
)

// takeRoCEv2 makes version 1 choose among RoCEv2 GIDs.
func takeRoCEv2(f *elf.File, module []byte) error {
	code, err := function(f, module, gidFunction)
	if err != nil {
		return err
	}
	v1, v2 := compares(code, gidRoCEv1), compares(code, gidRoCEv2)
	if len(v1) != 1 || len(v2) != 1 {
		return fmt.Errorf("module smc: function %s compares %d times with %d and %d times with %d, each once was expected",
			gidFunction, len(v1), gidRoCEv1, len(v2), gidRoCEv2)
	}
	code[v1[0]+2] = gidRoCEv2
	return nil
}

// The function that sets the timer of a link group without connections, and its two
// times, in ticks (net/smc/smc_core.c). The time of the server occurs twice: for
// everything but SMC-R, and for a server of SMC-R.
const (
	idleFunction = "smc_conn_free"
	tick         = 4 * time.Millisecond // CONFIG_HZ=250 in Debian's kernels
	idleServer   = uint32(600 * time.Second / tick)
	idleClient   = uint32(610 * time.Second / tick)
)

// shortenIdle sets how long link groups exist without connections.
func shortenIdle(f *elf.File, module []byte, idle time.Duration) error {
	if idle < tick || idle > 600*time.Second || idle%tick != 0 {
		return fmt.Errorf("a link group cannot be idle for %v: it takes a multiple of %v, up to 10 minutes", idle, tick)
	}
	code, err := function(f, module, idleFunction)
	if err != nil {
		return err
	}
	server, client := moves(code, idleServer), moves(code, idleClient)
	if len(server) != 2 || len(client) != 1 {
		return fmt.Errorf("module smc: function %s has the number %d %d times and %d %d times, twice and once was expected",
			idleFunction, idleServer, len(server), idleClient, len(client))
	}
	for _, at := range server {
		binary.LittleEndian.PutUint32(code[at+1:], uint32(idle/tick))
	}
	binary.LittleEndian.PutUint32(code[client[0]+1:], uint32((idle+IdleClient)/tick))
	return nil
}

// compares returns the positions of the instruction "cmp r32, imm8" with the number n in
// code: 83 /7 ib (Intel's manual, volume 2, CMP), register to register.
func compares(code []byte, n byte) (at []int) {
	for i := 0; i+2 < len(code); i++ {
		if code[i] == 0x83 && code[i+1]&0xf8 == 0xf8 && code[i+2] == n {
			at = append(at, i)
		}
	}
	return at
}

// moves returns the positions of the instruction "mov r32, imm32" with the number n in
// code: b8+r id (Intel's manual, volume 2, MOV).
func moves(code []byte, n uint32) (at []int) {
	for i := 0; i+4 < len(code); i++ {
		if code[i]&0xf8 == 0xb8 && binary.LittleEndian.Uint32(code[i+1:]) == n {
			at = append(at, i)
		}
	}
	return at
}

// function returns the code of a function of a relocatable object, as a part of module.
func function(f *elf.File, module []byte, name string) ([]byte, error) {
	symbols, err := f.Symbols()
	if err != nil {
		return nil, fmt.Errorf("module smc: %w", err)
	}
	for _, s := range symbols {
		if s.Name != name || elf.ST_TYPE(s.Info) != elf.STT_FUNC || int(s.Section) >= len(f.Sections) {
			continue
		}
		sec := f.Sections[s.Section]
		if sec.Type != elf.SHT_PROGBITS || s.Value > sec.Size || s.Size > sec.Size-s.Value {
			break
		}
		at, end := sec.Offset+s.Value, sec.Offset+s.Value+s.Size
		if at > end || end > uint64(len(module)) {
			return nil, fmt.Errorf("module smc: function %s is not in the file", name)
		}
		return module[at:end], nil
	}
	return nil, fmt.Errorf("module smc has no function %s", name)
}

// signatureMagic is the end of a signed module. Before it are 12 bytes whose last four
// are the length of the signature before them, big endian (Linux documentation, "Kernel
// module signing facility").
const (
	signatureMagic = "~Module signature appended~\n"
	signatureInfo  = 12
)

// unsigned returns a copy of a module without its signature.
func unsigned(module []byte) ([]byte, error) {
	b := bytes.Clone(module)
	if !bytes.HasSuffix(b, []byte(signatureMagic)) {
		return b, nil
	}
	b = b[:len(b)-len(signatureMagic)]
	if len(b) < signatureInfo {
		return nil, errors.New("module smc: its signature is cut short")
	}
	n := binary.BigEndian.Uint32(b[len(b)-4:])
	b = b[:len(b)-signatureInfo]
	if uint64(n) > uint64(len(b)) {
		return nil, errors.New("module smc: its signature is longer than the file")
	}
	return b[:len(b)-int(n)], nil
}
