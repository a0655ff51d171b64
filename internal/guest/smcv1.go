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
)

// Soft-RoCE has RoCEv2 GIDs only, and Linux takes RoCEv1 GIDs for SMC-R version
// 1, so that no stock kernel speaks version 1 over it. One number of the
// kernel's SMC is in the way: the type of GID that version 1 asks for.

// LoadSMCv1 is LoadSMC for a kernel that speaks version 1 too: its SMC takes
// the RoCEv2 GID of index 0, which is link-local, where it looks for a RoCEv1
// GID. The messages are those of version 1; the packets are soft-RoCE's, UDP
// over IPv6. A connection is of version 2 where both sides have an enterprise
// ID, as ever.
func (g *Guest) LoadSMCv1(ctx context.Context) error {
	module, err := g.kernel.module(ctx, "smc")
	if err != nil {
		return err
	}
	if module, err = takeRoCEv2(module); err != nil {
		return fmt.Errorf("guest: kernel %s: %w", g.kernel.Version, err)
	}
	file := filepath.Join(g.dir, "smc-v1.ko")
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

// The function that chooses a GID, and the types of GID that it compares with:
// RoCE for version 1, RoCE with UDP encapsulation for version 2 (ib_gid_type).
const (
	gidFunction = "smc_ib_determine_gid"
	gidRoCEv1   = 1
	gidRoCEv2   = 2
)

// takeRoCEv2 returns SMC's module with version 1 choosing among RoCEv2 GIDs.
// It refuses a module in which the choice is not plain to see. The signature,
// which does not match any more, is left out: an unsigned module only taints.
func takeRoCEv2(module []byte) ([]byte, error) {
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
	at, size, err := function(f, gidFunction)
	if err != nil {
		return nil, err
	}
	if at+size > uint64(len(module)) || at+size < at {
		return nil, fmt.Errorf("module smc: function %s is not in the file", gidFunction)
	}
	code := module[at : at+size]
	v1, v2 := compares(code, gidRoCEv1), compares(code, gidRoCEv2)
	if len(v1) != 1 || len(v2) != 1 {
		return nil, fmt.Errorf("module smc: function %s compares %d times with %d and %d times with %d, each once was expected",
			gidFunction, len(v1), gidRoCEv1, len(v2), gidRoCEv2)
	}
	code[v1[0]+2] = gidRoCEv2
	return module, nil
}

// compares returns where code has the instruction "cmp r32, imm8" with the
// number n: 83 /7 ib (Intel's manual, volume 2, CMP), register to register.
func compares(code []byte, n byte) (at []int) {
	for i := 0; i+2 < len(code); i++ {
		if code[i] == 0x83 && code[i+1]&0xf8 == 0xf8 && code[i+2] == n {
			at = append(at, i)
		}
	}
	return at
}

// function returns the place in the file, and the size, of a function of a
// relocatable object.
func function(f *elf.File, name string) (at, size uint64, err error) {
	symbols, err := f.Symbols()
	if err != nil {
		return 0, 0, fmt.Errorf("module smc: %w", err)
	}
	for _, s := range symbols {
		if s.Name != name || elf.ST_TYPE(s.Info) != elf.STT_FUNC || int(s.Section) >= len(f.Sections) {
			continue
		}
		sec := f.Sections[s.Section]
		if sec.Type != elf.SHT_PROGBITS || s.Value > sec.Size || s.Size > sec.Size-s.Value {
			break
		}
		return sec.Offset + s.Value, s.Size, nil
	}
	return 0, 0, fmt.Errorf("module smc has no function %s", name)
}

// signatureMagic ends a signed module. Before it stand 12 bytes whose last four
// are the length of the signature in front of them, big endian (Linux
// documentation, "Kernel module signing facility").
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
