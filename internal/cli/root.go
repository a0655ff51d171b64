// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"

	"smcr/internal/check"
	"smcr/internal/cmd"
	"smcr/internal/cmdutil"
	"smcr/internal/exporter"
	"smcr/internal/run"
	"smcr/internal/serve"
	"smcr/internal/services"
	"smcr/internal/top"
	"smcr/internal/trace"
	"smcr/internal/typo"
	"smcr/internal/verbs"
	"smcr/internal/why"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands returns the commands of the program. Those added here are found by
// the manual pages and completions too.
func commands(f *cmdutil.Factory) []*cobra.Command {
	return append(cmd.All(f), check.NewCmd(f), exporter.NewCmd(f), run.NewCmd(f), serve.NewCmd(f), services.NewCmd(f), top.NewCmd(f), trace.NewCmd(f), verbs.NewCmd(f), why.NewCmd(f))
}

// NewRoot returns the command smcr.
func NewRoot(f *cmdutil.Factory) *cobra.Command {
	root := cmdutil.Group(&cobra.Command{
		Use:   "smcr",
		Short: "Shared Memory Communications over RDMA (SMC-R)",
		Example: "  smcr run -v -- curl http://10.1.0.5/\n  smcr connection list\n  smcr why :443\n" +
			"  smcr check 10.1.0.5:80\n  smcr explain 0x03010000",
		Long: "smcr moves the TCP connections of unmodified programs onto RDMA (RFC 7609). It\n" +
			"also shows and manages the SMC stacks, the kernel's and the user-space stack.\n\n" +
			"Exit status: 0 done, 1 error, 2 usage, 3 something named does not exist,\n" +
			"4 permission denied, 5 no such SMC stack.",
		SilenceUsage:      true,
		SilenceErrors:     true,
		Version:           f.Version,
		DisableAutoGenTag: true,
	})
	root.SetVersionTemplate("smcr {{.Version}}\n")
	// Without a letter: -v is an option of smc-tools.
	root.Flags().Bool("version", false, "print the version of smcr (-v prints that of the smc-tools whose output smcr has, for their scripts)")
	root.SetIn(f.IO.In)
	root.SetOut(f.IO.Out)
	root.SetErr(f.IO.ErrOut)
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.PersistentFlags().StringVar(&f.Backend, "backend", f.Backend,
		"the `stack` to ask: auto, kernel, user, ending-N or unix:PATH (environment: "+cmdutil.BackendEnv+")")
	_ = root.RegisterFlagCompletionFunc("backend",
		cobra.FixedCompletions([]string{"auto", "kernel", "user", "unix:"}, cobra.ShellCompDirectiveNoFileComp|cobra.ShellCompDirectiveNoSpace))
	root.AddCommand(commands(f)...)
	addWords(root)
	return root
}

// flagError returns the error of a wrong flag, with the one that was probably meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) || unknown.GetSpecifiedShortnames() != "" {
		return cmdutil.UsageError("%v", err)
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, "--"+f.Name)
		}
	})
	text := typo.Meant("--"+unknown.GetSpecifiedName(), names, "see '"+cmd.CommandPath()+" --help'")
	return cmdutil.UsageError("%v: %s", err, text)
}
