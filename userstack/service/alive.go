// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"fmt"

	"smcr/userstack/engine"
)

// Alive returns nil if the service can carry data and answer commands now: each engine has
// run a round, and the stack has answered a question. Otherwise it returns, at the end of
// ctx, which of them has not.
func (s *Service) Alive(ctx context.Context) error {
	for i, l := range s.cfg.Engines {
		if err := engine.Alive(ctx, l); err != nil {
			return fmt.Errorf("service: engine %d of %d: %w", i+1, len(s.cfg.Engines), err)
		}
	}
	answered := make(chan error, 1)
	go s.in.Guard().Func("the question of the watchdog", func() {
		_, err := s.answer.SysInfo(ctx)
		answered <- err
	})()
	select {
	case err := <-answered:
		if err != nil {
			return fmt.Errorf("service: the stack: %w", err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("service: the stack does not answer: %w", context.Cause(ctx))
	}
}
