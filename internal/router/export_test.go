package router

import "time"

// Ahead moves r's clock.
func Ahead(r *Router, by time.Duration) { r.ahead.Add(int64(by)) }

// Unverify makes r take every handle for right: what vLLM itself does.
func Unverify(r *Router) { r.unverified = true }

// Patience makes the probe wait less for P.
func Patience(c *Config, d time.Duration) { c.probePatience = d }

// AppendPremium sets what an append must save, in ms.
func AppendPremium(c *Config, ms float64) { c.appendPremium = ms }

// CloseIdle closes r's connections that no call uses.
func CloseIdle(r *Router) { r.client.CloseIdleConnections() }
