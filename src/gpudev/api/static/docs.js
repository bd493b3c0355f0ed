"use strict";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const followColourScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
followColourScheme();
dark.addEventListener("change", followColourScheme);

SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  showCommonExtensions: true,
  validatorUrl: null,
});
