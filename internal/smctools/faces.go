// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"path/filepath"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/face"
	"smcr/internal/smctools/smcchk"
	"smcr/internal/smctools/smcdbg"
	"smcr/internal/smctools/smcpnet"
	"smcr/internal/smctools/smcrd"
	"smcr/internal/smctools/smcrnics"
	"smcr/internal/smctools/smcrun"
	"smcr/internal/smctools/smcss"
)

// A Main is the main function of a face. It returns the exit status.
type Main func(ctx context.Context, e *face.Env, args []string) int

// faces are the programs by their names, without smcr, which is ours as well.
var faces = map[string]Main{
	"smcd":      smcd,
	"smcss":     smcss.Main,
	"smc_pnet":  smcpnet.Main,
	"smc_run":   smcrun.Main,
	"smc_rnics": smcrnics.Main,
	"smc_chk":   smcchk.Main,
	"smc_dbg": func(ctx context.Context, e *face.Env, args []string) int {
		return smcdbg.New(collected).Main(ctx, e, args)
	},
}

// collected are the programs whose output smc_dbg collects.
var collected = map[string]smcdbg.Runner{
	"smcr": SMCR, "smcd": smcd, "smcss": smcss.Main, "smc_pnet": smcpnet.Main, "smc_rnics": smcrnics.Main, "smc_chk": smcchk.Main,
}

func smcd(ctx context.Context, e *face.Env, args []string) int {
	return smcrd.Main(ctx, e, true, args)
}

// Lookup returns the face that a program called as argv0 has, or nil when it is
// none of smc-tools' names, or smcr.
func Lookup(argv0 string) Main { return faces[filepath.Base(argv0)] }

// Run runs a face, and takes --backend at the beginning of its arguments away.
func Run(ctx context.Context, f *cmdutil.Factory, m Main, argv []string) int {
	e := face.NewEnv(f, argv[0])
	return m(ctx, e, e.TakeBackend(argv[1:]))
}

// SMCR is the face smcr.
func SMCR(ctx context.Context, e *face.Env, args []string) int {
	return smcrd.Main(ctx, e, false, args)
}
