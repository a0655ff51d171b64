// SPDX-License-Identifier: Apache-2.0

package smctools

import (
	"context"
	"path/filepath"

	"smcr/internal/cmdutil"
	"smcr/internal/smctools/smcchk"
	"smcr/internal/smctools/smcrd"
	"smcr/internal/smctools/smcrnics"
	"smcr/internal/smctools/tool"
)

// A Main is the main function of a program of smc-tools. It returns the exit status.
type Main func(ctx context.Context, e *tool.Env, args []string) int

// programs are the programs by their names. The program smcr is not among them, because
// its name is also that of this program.
var programs = map[string]Main{
	"smcd":      smcd,
	"smcss":     smcSS,
	"smc_pnet":  smcPNET,
	"smc_run":   smcRun,
	"smc_rnics": smcrnics.Main,
	"smc_chk":   smcchk.Main,
	"smc_dbg": func(ctx context.Context, e *tool.Env, args []string) int {
		return newCollector(collected).main(ctx, e, args)
	},
}

// collected are the programs whose output smc_dbg collects.
var collected = map[string]Main{
	"smcr": SMCR, "smcd": smcd, "smcss": smcSS, "smc_pnet": smcPNET, "smc_rnics": smcrnics.Main, "smc_chk": smcchk.Main,
}

func smcd(ctx context.Context, e *tool.Env, args []string) int {
	return smcrd.Main(ctx, e, true, args)
}

// Lookup returns the program of smc-tools that is called as argv0, or nil for any other
// name, and for smcr.
func Lookup(argv0 string) Main { return programs[filepath.Base(argv0)] }

// Run runs a program of smc-tools with the arguments argv[1:]. It removes --backend from
// the beginning of the arguments.
func Run(ctx context.Context, f *cmdutil.Factory, m Main, argv []string) int {
	e := tool.NewEnv(f, argv[0])
	return m(ctx, e, e.TakeBackend(argv[1:]))
}

// SMCR is the program smcr of smc-tools.
func SMCR(ctx context.Context, e *tool.Env, args []string) int {
	return smcrd.Main(ctx, e, false, args)
}
